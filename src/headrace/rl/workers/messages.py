"""Messages of any length over rings of short slots: a header and a payload in, the same out at the other end.

A message is sent in pieces, each with a header; the receiver joins them by sender. What a sender that was killed left
unfinished is dropped when its successor, with a higher epoch, sends its first piece.
"""

from __future__ import annotations

import os
import struct
import time
from typing import NamedTuple, Protocol

__all__ = ["HEADER_BYTES", "Message", "Pieces", "awaited", "push"]

_HEADER = struct.Struct("<cBHII")  # kind, whether more follows, sender, epoch, number
HEADER_BYTES = _HEADER.size
_SPIN_S = 100e-6


class Message(NamedTuple):
    """`number`: which command it is, or answers; commands of an epoch are numbered from 1."""

    kind: bytes
    sender: int
    epoch: int
    number: int
    payload: bytes


class Ring(Protocol):
    def push(self, message: bytes, timeout_s: float | None = None) -> None: ...
    def pop(self, timeout_s: float | None = None) -> bytes: ...
    def try_pop(self) -> bytes | None: ...
    @property
    def slot_bytes(self) -> int: ...


def push(ring: Ring, kind: bytes, sender: int, epoch: int, number: int, payload: bytes = b"") -> None:
    """Send; waits while the ring is full, and raises what the ring raises when nobody is there to empty it."""
    room = ring.slot_bytes - HEADER_BYTES
    while len(payload) > room:
        ring.push(_HEADER.pack(kind, 1, sender, epoch, number) + payload[:room])
        payload = payload[room:]
    ring.push(_HEADER.pack(kind, 0, sender, epoch, number) + payload)


def awaited(ring: Ring, timeout_s: float | None = None) -> bytes:
    """The next message; raises what `ring.pop` raises.

    Before it sleeps it looks for some microseconds, letting others have the processor in between: to be woken takes
    longer than most steps do.
    """
    until_s = time.perf_counter() + _SPIN_S
    while time.perf_counter() < until_s:
        message = ring.try_pop()
        if message is not None:
            return message
        os.sched_yield()
    return ring.pop(timeout_s)


class Pieces:
    """What has arrived of messages that are not whole yet."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[int, list[bytes]]] = {}

    def join(self, piece: bytes) -> Message | None:
        """The message, if this was its last piece."""
        kind, more, sender, epoch, number = _HEADER.unpack_from(piece)
        if not more and sender not in self._parts:
            return Message(kind, sender, epoch, number, piece[HEADER_BYTES:])
        begun, parts = self._parts.pop(sender, (epoch, []))
        if begun != epoch:
            parts = []
        parts.append(piece[HEADER_BYTES:])
        if more:
            self._parts[sender] = (epoch, parts)
            return None
        return Message(kind, sender, epoch, number, b"".join(parts))
