"""The queue of a backend that needs none: each request goes to it as it comes, and it joins them itself.

A language model decides token by token who runs; holding its requests back to form batches would only make them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from headrace.errors import Cancelled, HeadraceError, StageFailed, Unavailable
from headrace.serve.protocol import ConcurrentBackend, Tensors
from headrace.serve.scheduler.batcher import BatchObserver
from headrace.serve.scheduler.work import Work
from headrace.serve.watch import Watch

__all__ = ["Direct"]


class Direct:
    """Stands where the `Batcher` stands for other backends. All methods belong to one event loop."""

    def __init__(self, name: str, backend: ConcurrentBackend, observe: BatchObserver) -> None:
        self.name = name
        self._backend = backend
        self._observe = observe
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def queued(self) -> int:
        """Requests waiting here: none ever does."""
        return 0

    @property
    def running(self) -> int:
        """Requests being answered."""
        return len(self._tasks)

    def submit(self, work: Work) -> None:
        """Begin `work`; its outcome arrives through `work.finish` on the event loop. When its context ends, so does
        the work."""
        if self._closed:
            work.finish(None, Unavailable(f"model {self.name!r} is being unloaded"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new work and wait until everything the backend has accepted, here or elsewhere, is answered; what
        outlasts `timeout_s` is given up."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled(), timeout_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _settled(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._backend.settle()

    async def _answer(self, work: Work) -> None:
        start_s = time.perf_counter()
        outcome: Tensors | HeadraceError
        try:
            with Watch(work.ctx):
                outcome = await self._backend.answer(work.tensors, work.ctx, work.parameters or {})
        except HeadraceError as error:
            outcome = error
        except asyncio.CancelledError:
            outcome = Cancelled(f"model {self.name!r} was unloaded before its answer was complete")
        except Exception as error:
            outcome = StageFailed(self.name, f"{type(error).__name__}: {error}")
            outcome.__cause__ = error
        works: Sequence[Work] = (work,)
        self._observe(works, (outcome,), start_s, time.perf_counter() - start_s)
        if isinstance(outcome, HeadraceError):
            work.finish(None, outcome)
        else:
            work.finish(outcome)
        work.release()
