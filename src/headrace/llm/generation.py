"""What a caller holds of a request: chunks out, by `for` or `async for`, until the last or until it is dropped."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from headrace.core.waiter import ThreadWaiter
from headrace.errors import Unavailable
from headrace.llm.inbox import LoopWaiter, merge
from headrace.llm.params import Chunk
from headrace.llm.sequence import Request

__all__ = ["Generation"]


class Generation:
    """The answers to one prompt as they are written; both an iterator and an async iterator of `Chunk`.

    One reader at a time. Closing, cancelling or dropping it ends the work within one step of the engine. Each of the
    `n` answers has its own chunks, told apart by `Chunk.index`; the last of each has `finish_reason` and `usage`.
    Raises what ended the request early: `DeadlineExceeded`, `Cancelled` (the context's), `Unavailable` (the engine was
    closed), `StageFailed` (the model failed).

    Attributes:
        request_id: The context's.
        prompt_tokens: Tokens of the prompt, as it was used.
        truncated_tokens: Tokens that were cut from it, 0 unless `truncate` was asked.
    """

    def __init__(self, request: Request, truncated_tokens: int, engine: object = None) -> None:
        self.request_id = request.ctx.request_id
        self.prompt_tokens = len(request.prompt)
        self.truncated_tokens = truncated_tokens
        self._request = request
        self._inbox = request.inbox
        self._engine = engine  # which lives as long as somebody reads what it writes
        self._pid = os.getpid()
        self._ready: deque[Chunk] = deque()

    def cancel(self) -> None:
        """End all answers that have not ended; each gets a last chunk with `finish_reason` "cancelled"."""
        self._request.cancel()

    def collect(self) -> list[Chunk]:
        """Wait for the end; one chunk for each answer, by index, with all of its text and tokens."""
        return sorted(merge(list(self)), key=lambda chunk: chunk.index)

    async def acollect(self) -> list[Chunk]:
        """`collect` for an event loop."""
        return sorted(merge([chunk async for chunk in self]), key=lambda chunk: chunk.index)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        waiter = None
        while not self._ready:
            if self._fetch(waiter):
                raise StopIteration
            if not self._ready:
                if waiter is not None:
                    with self._inbox.sleeping(waiter):
                        waiter.wait(None)
                else:
                    waiter = ThreadWaiter()
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            waiter = LoopWaiter()
            if self._fetch(waiter):
                raise StopAsyncIteration
            if not self._ready:
                with self._inbox.sleeping(waiter):
                    await waiter.wait()
        return self._ready.popleft()

    def _fetch(self, waiter: ThreadWaiter | LoopWaiter | None) -> bool:
        """Make what is unread ready; True at the end. With nothing to read `waiter` will be woken."""
        if self._pid != os.getpid():
            raise Unavailable(f"this answer is written in process {self._pid}, not in this one, forked from it")
        unread = self._inbox.take(waiter)
        if unread is not None:
            self._ready.extend(unread)
            return False
        if self._inbox.error is not None:
            raise self._inbox.error.with_traceback(None)
        return True

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        request = getattr(self, "_request", None)
        if request is not None:
            request.cancel()
