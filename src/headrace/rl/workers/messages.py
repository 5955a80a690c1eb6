"""Messages of any length over rings of short slots: a header and a payload in, the same out at the other end.

A message is sent in pieces, each with a header; the receiver joins them by sender. What a sender left unfinished, since
it was killed or interrupted, is dropped when another message begins, and so is a message that lacks a piece.
"""

from __future__ import annotations

import os
import struct
import time
from typing import NamedTuple, Protocol

__all__ = ["HEADER_BYTES", "Message", "Pieces", "awaited", "push"]

_HEADER = struct.Struct("<cBHIII")  # kind, whether more follows, sender, epoch, number, number of the piece
HEADER_BYTES = _HEADER.size


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
    piece = 0
    while len(payload) - piece * room > room:
        part = payload[piece * room : (piece + 1) * room]
        ring.push(_HEADER.pack(kind, 1, sender, epoch, number, piece) + part)
        piece += 1
    ring.push(_HEADER.pack(kind, 0, sender, epoch, number, piece) + payload[piece * room :])


def awaited(ring: Ring, spin_s: float, timeout_s: float | None = None) -> bytes:
    """The next message; raises what `ring.pop` raises.

    Before it sleeps it looks for `spin_s` seconds, letting others have the processor in between: to be woken takes
    longer than most steps do.
    """
    until_s = time.perf_counter() + spin_s
    while time.perf_counter() < until_s:
        message = ring.try_pop()
        if message is not None:
            return message
        os.sched_yield()
    return ring.pop(timeout_s)


class Pieces:
    """What has arrived of messages that are not whole yet."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[tuple[int, int], list[bytes]]] = {}

    def join(self, piece: bytes) -> Message | None:
        """The message, if this was its last piece and all of them have come."""
        kind, more, sender, epoch, number, place = _HEADER.unpack_from(piece)
        if not more and not place:
            return Message(kind, sender, epoch, number, piece[HEADER_BYTES:])
        begun, parts = self._parts.pop(sender, ((epoch, number), []))
        if place == 0:
            begun, parts = (epoch, number), []
        if begun != (epoch, number) or place != len(parts):
            return None
        parts.append(piece[HEADER_BYTES:])
        if more:
            self._parts[sender] = (begun, parts)
            return None
        return Message(kind, sender, epoch, number, b"".join(parts))
