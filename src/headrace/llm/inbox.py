"""Chunks on their way from the engine's thread to one reader, in a thread or an event loop.

The engine puts, the reader takes. Unread chunks of one answer are merged, so that a slow reader gets longer ones and
nothing grows but the text. Readers who sleep are woken once a step, all those of an event loop by one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TypeAlias

from headrace.core.waiter import ThreadWaiter
from headrace.errors import HeadraceError, InvalidInput
from headrace.llm.params import Chunk

__all__ = ["Inbox", "LoopWaiter", "Sleeper", "Wakeups", "merge"]

MERGE_AT = 32
"""Unread chunks that are merged in the inbox already; fewer are merged when they are read."""


class LoopWaiter:
    """Sleeps in the current asyncio task; belongs to one sleep."""

    __slots__ = ("_future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self.loop.create_future()

    async def wait(self) -> None:
        await self._future

    def open(self) -> None:
        """On the loop's thread."""
        if not self._future.done():
            self._future.set_result(None)


Sleeper: TypeAlias = ThreadWaiter | LoopWaiter


class Inbox:
    """The answers of one request. One reader; `put` and `fail` from any one thread at a time.

    Attributes:
        error: Why the request failed; raised to the reader after what had come before.
        open: Answers whose last chunk has not been put.
    """

    __slots__ = ("_chunks", "_lock", "_merge_at", "_sleeper", "error", "open")

    def __init__(self, answers: int) -> None:
        self._lock = Lock()
        self._chunks: list[Chunk] = []
        self._merge_at = MERGE_AT
        self._sleeper: Sleeper | None = None
        self.error: HeadraceError | None = None
        self.open = answers

    @property
    def ended(self) -> bool:
        """Whether no chunk will be put any more."""
        return self.open == 0 or self.error is not None

    def put(self, chunk: Chunk) -> Sleeper | None:
        """Add a chunk; returns who sleeps for it, to be woken."""
        with self._lock:
            if chunk.finish_reason:
                self.open -= 1
            self._chunks.append(chunk)
            if len(self._chunks) >= self._merge_at:
                self._chunks = merge(self._chunks)
                self._merge_at = 2 * len(self._chunks) + MERGE_AT
            sleeper, self._sleeper = self._sleeper, None
            return sleeper

    def fail(self, error: HeadraceError) -> Sleeper | None:
        """End all answers with an error; the first one stands. Returns who sleeps."""
        with self._lock:
            if not self.ended:
                self.error = error
            sleeper, self._sleeper = self._sleeper, None
            return sleeper

    def take(self, sleeper: Sleeper | None) -> list[Chunk] | None:
        """All unread chunks, merged, or None when that was all. When there are none yet, the next `put` returns
        `sleeper`. Raises `InvalidInput` where another reader sleeps."""
        with self._lock:
            if self._sleeper not in (None, sleeper):
                raise InvalidInput("an answer has one reader at a time, and another one waits for its next chunk")
            chunks, self._chunks = self._chunks, []
            if not chunks and self.ended:
                return None
            self._sleeper = None if chunks else sleeper
        return merge(chunks)

    @contextmanager
    def sleeping(self, sleeper: Sleeper) -> Iterator[None]:
        """Around a sleep, which may be interrupted: nobody sleeps after it."""
        try:
            yield
        finally:
            with self._lock:
                if self._sleeper is sleeper:
                    self._sleeper = None


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    """One chunk for each answer, in the order in which they first appear."""
    if len(chunks) < 2:
        return list(chunks)
    by_answer: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        by_answer.setdefault(chunk.index, []).append(chunk)
    return [
        Chunk(
            text="".join([chunk.text for chunk in parts]),
            tokens=tuple([token for chunk in parts for token in chunk.tokens]),
            index=index,
            finish_reason=parts[-1].finish_reason,
            logprobs=tuple([logprob for chunk in parts for logprob in chunk.logprobs]),
            usage=parts[-1].usage,
        )
        for index, parts in by_answer.items()
    ]


class Wakeups:
    """Collects sleepers during a step and wakes them together."""

    def __init__(self) -> None:
        self._threads: list[ThreadWaiter] = []
        self._loops: dict[asyncio.AbstractEventLoop, list[LoopWaiter]] = {}

    def add(self, sleeper: Sleeper | None) -> None:
        if isinstance(sleeper, LoopWaiter):
            self._loops.setdefault(sleeper.loop, []).append(sleeper)
        elif sleeper is not None:
            self._threads.append(sleeper)

    def wake(self) -> None:
        for waiter in self._threads:
            waiter.wake()
        self._threads.clear()
        for loop, waiters in self._loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody sleeps there any more
                loop.call_soon_threadsafe(_open, waiters)
        self._loops = {}


def _open(waiters: Iterable[LoopWaiter]) -> None:
    for waiter in waiters:
        waiter.open()
