"""Rings: what `Channel` is inside a process, across processes. Bytes go in at one end and out, in order, at the other.

A ring is `slots` (a power of two) messages of up to `slot_bytes` bytes in shared memory. `SpscRing` is for one producer
and one consumer, `MpmcRing` for up to 128 processes that each may do both. Processes may come, go and be killed at any
instant: a message arrives at most once and never torn, and nobody waits for the dead. docs/core.md gives the rules.

Calls that may wait take `timeout_s` (None waits for ever) and raise `DeadlineExceeded` when it is up, `ChannelClosed`
after `close()` (pops only once the ring is drained), and `Unavailable` when it is drained (full) and every process on
the other side has died; a new process may then take the dead one's place. The GIL is given up only while waiting.
Messages may be any contiguous bytes-like object; a longer one than `slot_bytes` raises `InvalidInput`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from headrace import _native
from headrace.core import shm
from headrace.errors import LeaseError

__all__ = ["MpmcRing", "SpscRing"]


def _end(view: memoryview | None, what: str) -> None:
    """Make `view` unusable, so that nothing uses a slot that is no longer ours; the native side looks for arrays."""
    try:
        if view is not None:
            view.release()
    except BufferError as error:
        raise LeaseError(f"ring: {what} while something made from the slot lives") from error


class _Named:
    """What both rings add to the native ones: a name to find them by, and slots used in place."""

    _segment: shm.SharedSegment
    _writing: memoryview | None = None
    _reading: memoryview | None = None
    # Of the native base.
    bytes_for: Callable[..., int]
    close: Callable[[], None]
    _reserve: Callable[..., Any]
    _commit: Callable[[int], None]
    _abandon: Callable[[], None]
    _peek: Callable[..., Any]
    _release: Callable[[], None]

    @classmethod
    def create(cls, name: str | None = None, *, slots: int = 1024, slot_bytes: int = 4096) -> Self:
        """Make a ring. It belongs to this process, which removes the name when the object is dropped.

        Raises `InvalidInput` (name or geometry), `Conflict` (the name is taken) and `Overloaded` (no shared memory).
        """
        segment = shm.create(name, cls.bytes_for(slots, slot_bytes))
        ring = cls(segment, slots, slot_bytes)  # type: ignore[call-arg]  # the native constructor
        ring._segment = segment
        weakref.finalize(ring, segment.unlink)  # also at exit, when a daemon thread may still hold the ring
        return ring

    @classmethod
    def attach(cls, name: str) -> Self:
        """Use the ring another process made. Raises `NotFound`, or `IntegrityError` when it is no such ring."""
        segment = shm.attach(name)
        ring = cls(segment)  # type: ignore[call-arg]
        ring._segment = segment
        return ring

    @property
    def name(self) -> str:
        return self._segment.name

    def unlink(self) -> None:
        """Remove the name now (owner only): nobody can attach any more, and those who have go on undisturbed."""
        self._segment.unlink()

    def reserve(self, timeout_s: float | None = None) -> memoryview:
        """The next free slot, `slot_bytes` writable bytes (64-byte aligned), to fill in place and then `commit`.

        One at a time; `LeaseError` when one is reserved already, or when an `SpscRing` is asked to push in between.
        """
        self._writing = memoryview(self._reserve(timeout_s))
        return self._writing

    def commit(self, nbytes: int) -> None:
        """Send the first `nbytes` bytes of the reserved slot. The view ends; `LeaseError` while arrays of it live."""
        _end(self._writing, "commit")
        self._commit(nbytes)

    def abandon(self) -> None:
        """Give the reserved slot back unsent."""
        _end(self._writing, "abandon")
        self._abandon()

    def peek(self, timeout_s: float | None = None) -> memoryview:
        """The next message in place, read-only, until `release`. On an `MpmcRing` it is ours from now on."""
        self._reading = memoryview(self._peek(timeout_s))
        return self._reading

    def release(self) -> None:
        """Free the slot of the peeked message. The view ends; `LeaseError` while arrays of it live."""
        _end(self._reading, "release")
        self._release()

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.unlink()

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        """Rings travel to other processes by name."""
        return type(self).attach, (self.name,)


class SpscRing(_Named, _native.SpscRing):
    """One producer, one consumer; the first push (pop) takes the role, `Conflict` if another live process has it.

    One thread may push while another pops.
    """


class MpmcRing(_Named, _native.MpmcRing):
    """Any number of producers and consumers, threads and processes; each producer's messages stay in order."""
