"""Worker threads for blocking stages: a function in, its answer awaited on the event loop.

Bounded twice: so many threads, so many jobs waiting. An awaiting task that is cancelled leaves its job behind: one that
still waits is dropped, one that runs is counted as abandoned until it returns, and its answer is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from headrace.errors import Overloaded, Unavailable

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """A pool of daemon threads that may serve several event loops.

    Args:
        size: Threads; default: the CPUs this process may use.
        max_waiting: Jobs that may wait for a thread before `run` raises `Overloaded`.

    Attributes:
        abandoned: Threads held by jobs that nobody waits for any more; `Overloaded` once that is all of them.
    """

    def __init__(self, size: int | None = None, max_waiting: int = 1024) -> None:
        self.size = size or len(os.sched_getaffinity(0))
        self.max_waiting = max_waiting
        self.abandoned = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    @property
    def unfinished(self) -> int:
        """Jobs that wait or run, abandoned ones included."""
        return self._unfinished

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` on a thread; return or raise what it does. Raises `Overloaded`, or `Unavailable` when closed."""
        loop = asyncio.get_running_loop()
        job = _Job(call, loop, loop.create_future())
        self._submit(job)
        try:
            value, error = await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if error is not None:
            raise error
        return cast(T, value)

    def close(self, timeout_s: float = 5.0) -> None:
        """Refuse new jobs, finish what was accepted, join the threads; a thread that is stuck is left as a daemon."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join(timeout_s)

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("the worker threads are closed")
            if self.abandoned >= self.size:
                raise Overloaded(f"all {self.size} worker threads are held by stages that outlived their deadline")
            if self._unfinished >= self.size + self.max_waiting:
                raise Overloaded(f"{self.max_waiting} stages already wait for {self.size} worker threads")
            self._unfinished += 1
            if len(self._threads) < min(self.size, self._unfinished):
                thread = threading.Thread(target=self._work, name=f"stage-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put(job)

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.abandoned = True
            if job.running:
                self.abandoned += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                job.running = not job.abandoned
                if not job.running:
                    self._unfinished -= 1
            if job.running:
                self._finish(job, *job.outcome())
            del job  # an idle thread keeps no payload alive

    def _finish(self, job: _Job, value: Any, error: BaseException | None) -> None:
        with self._lock:
            self._unfinished -= 1
            job.running = False
            if job.abandoned:
                self.abandoned -= 1
                return
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left to tell
            job.loop.call_soon_threadsafe(job.settle, value, error)


class _Job:
    __slots__ = ("abandoned", "call", "future", "loop", "running")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self.call = call
        self.loop = loop
        self.future = future
        self.running = False
        self.abandoned = False

    def outcome(self) -> tuple[Any, BaseException | None]:
        try:
            return self.call(), None
        except BaseException as error:  # SystemExit too: it must reach the caller, not end the thread
            return None, error

    def settle(self, value: Any, error: BaseException | None) -> None:
        if not self.future.done():
            self.future.set_result((value, error))
