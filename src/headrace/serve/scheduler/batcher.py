"""Joins queued requests into batches, runs them, splits the answers back.

Rows of one shape are joined (a bucket per shape), across requests, on the event loop; requests that arrive in one tick
of the loop form one batch without any timer. Runs happen inline for very short models, else on worker threads.
Nothing waits past its deadline: queued work is dropped when its context ends, running work is answered and left behind.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

import numpy as np

from headrace.errors import HeadraceError, Overloaded, StageFailed, Unavailable
from headrace.serve.config import BatchingConfig
from headrace.serve.protocol import Tensors
from headrace.serve.scheduler.policy import Execution, batch_wait_s, next_run_s, runs_inline
from headrace.serve.scheduler.work import Work

__all__ = ["BatchObserver", "Batcher"]

BatchObserver: TypeAlias = Callable[[Sequence[Work], Sequence[Tensors | HeadraceError], float, float], None]
"""Told of each run: its requests and their outcomes, when it started (perf_counter) and how many seconds it took."""

Bucket: TypeAlias = tuple[tuple[int, ...], ...]
Ran: TypeAlias = tuple[float, float, float, list[Tensors | HeadraceError]]
"""When a run started (perf_counter), its seconds, its seconds of CPU time, and the outcome of each request."""


class Batcher:
    """The queue of one model. All methods belong to one event loop.

    Args:
        infer: Blocking call of the backend.
        executor: Where runs that are not inline go; must allow `instances` runs at once.
        joinable: Whether axis 0 of every input and output is the batch; otherwise every request runs alone.
        fixed: All axes but the first are static, so that all rows share one bucket.
    """

    def __init__(
        self,
        name: str,
        infer: Callable[[Tensors], Tensors],
        executor: Executor,
        batching: BatchingConfig,
        execution: Execution,
        instances: int,
        *,
        joinable: bool,
        fixed: bool,
        observe: BatchObserver,
        run_s: float,
    ) -> None:
        self.name = name
        self._infer = infer
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._max_batch = batching.max_batch if joinable and batching.enabled else 1
        self._window_s = batching.window_ms / 1e3
        self._max_queue = batching.max_queue
        self._execution = execution
        self._instances = instances
        self._fixed = fixed
        self._observe = observe
        self._buckets: dict[Bucket, deque[Work]] = {}
        self._queued = 0
        self._running = 0
        self._run_s = self._last_s = run_s
        self._inline = runs_inline(self._execution, run_s, inline_now=True)
        self._pump_due = False
        self._window_timer: asyncio.TimerHandle | None = None
        self._deadlines: list[tuple[float, int, Work]] = []
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._order = count()
        self._idle: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def queued(self) -> int:
        """Requests waiting."""
        return self._queued

    @property
    def running(self) -> int:
        """Batches being run."""
        return self._running

    def submit(self, work: Work) -> None:
        """Queue `work`; its outcome, also a refusal, arrives through `work.finish` on the event loop."""
        if self._closed:
            work.finish(None, Unavailable(f"model {self.name!r} is being unloaded"))
            return
        if self._queued >= self._max_queue:
            retry_s = self._run_s * self._queued / self._max_batch / self._instances
            work.finish(None, Overloaded(f"model {self.name!r}: {self._queued} requests are waiting already", retry_s))
            return
        key: Bucket = () if self._fixed else tuple(array.shape[1:] for array in work.tensors.values())
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = deque()
        if bucket and bucket[-1].ctx.priority < work.ctx.priority:
            ahead = sum(1 for other in bucket if other.ctx.priority >= work.ctx.priority)
            bucket.insert(ahead, work)
        else:
            bucket.append(work)
        self._queued += 1
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new work and wait until all accepted work is answered; what outlasts `timeout_s` is refused too."""
        self._closed = True
        if self._queued or self._running:
            self._idle = self._loop.create_future()
            try:
                await asyncio.wait_for(self._idle, timeout_s)
            except TimeoutError:
                for bucket in self._buckets.values():
                    for work in bucket:
                        work.finish(None, Unavailable(f"model {self.name!r} was unloaded before its turn"))
                self._buckets.clear()
                self._queued = 0
        for timer in (self._window_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Dispatch whatever the policy lets go, then see to it that someone wakes us for the rest."""
        self._pump_due = False
        while self._queued:
            key, bucket = self._next_bucket()
            rows = sum(work.rows for work in bucket) if self._running else 1
            oldest_s = time.perf_counter() - bucket[0].enqueued_s
            wait_s = batch_wait_s(rows, oldest_s, self._running, self._instances, self._max_batch, self._window_s)
            if wait_s != 0.0:
                self._rest(wait_s)
                return
            batch = self._take(key, bucket)
            if batch:
                self._run(batch)
        if self._idle is not None and not self._running and not self._idle.done():
            self._idle.set_result(None)

    def _next_bucket(self) -> tuple[Bucket, deque[Work]]:
        """The bucket whose head comes first: by priority, then by age."""
        if len(self._buckets) == 1:
            return next(iter(self._buckets.items()))
        return min(self._buckets.items(), key=lambda item: (-item[1][0].ctx.priority, item[1][0].enqueued_s))

    def _take(self, key: Bucket, bucket: deque[Work]) -> list[Work]:
        """Up to `max_batch` rows from the head of the bucket, leaving out what ended while it waited."""
        batch: list[Work] = []
        rows, now_s = 0, time.monotonic()
        while bucket:
            work = bucket[0]
            if batch and rows + work.rows > self._max_batch:
                break
            bucket.popleft()
            self._queued -= 1
            if work.alive(now_s):
                batch.append(work)
                rows += work.rows
            else:
                work.release()
        if not bucket:
            del self._buckets[key]
        return batch

    def _rest(self, wait_s: float | None) -> None:
        """Nothing may leave now: arm the window timer, and guard the deadlines of what waits."""
        if self._window_timer is not None:
            self._window_timer.cancel()
            self._window_timer = None
        if wait_s is not None:
            self._window_timer = self._loop.call_later(wait_s, self._pump)
        for bucket in self._buckets.values():
            for work in bucket:
                self._guard(work)

    # -- running -------------------------------------------------------------------------------------------------

    def _run(self, batch: list[Work]) -> None:
        self._inline = runs_inline(self._execution, self._run_s, self._inline)
        oversized = batch[0].rows > self._max_batch and self._execution == "auto"
        if self._inline and not oversized:
            self._settle(batch, *self._timed(batch))
            return
        self._running += 1
        for work in batch:
            self._guard(work)
        try:
            self._executor.submit(self._run_on_thread, batch)
        except RuntimeError:  # the executor was shut down
            self._running -= 1
            for work in batch:
                work.finish(None, Unavailable(f"model {self.name!r} is shutting down"))

    def _run_on_thread(self, batch: list[Work]) -> None:
        outcome = self._timed(batch)
        self._loop.call_soon_threadsafe(self._settle_thread, batch, outcome)

    def _settle_thread(self, batch: list[Work], ran: Ran) -> None:
        self._running -= 1
        self._settle(batch, *ran)
        if not self._pump_due:
            self._pump()

    def _timed(self, batch: list[Work]) -> Ran:
        start_s, cpu_start_s = time.perf_counter(), time.thread_time()
        outcomes = self._attempt(batch)
        return start_s, time.perf_counter() - start_s, time.thread_time() - cpu_start_s, outcomes

    def _attempt(self, batch: list[Work]) -> list[Tensors | HeadraceError]:
        """The outcome of each request. When a joined run fails, each runs alone: one bad row fails nobody else."""
        try:
            if len(batch) == 1:
                return [self._infer(batch[0].tensors)]
            joined = {name: np.concatenate([work.tensors[name] for work in batch]) for name in batch[0].tensors}
            return self._split(batch, self._infer(joined))
        except BaseException as error:
            if len(batch) == 1:
                return [error if isinstance(error, HeadraceError) else _failed(self.name, error)]
            return [outcome for work in batch for outcome in self._attempt([work])]

    def _split(self, batch: list[Work], outputs: Tensors) -> list[Tensors | HeadraceError]:
        rows = sum(work.rows for work in batch)
        for name, array in outputs.items():
            if array.shape[:1] != (rows,):
                raise StageFailed(
                    self.name, f"output {name!r} has shape {array.shape} for {rows} rows; set batching.enabled = false"
                )
        split: list[Tensors | HeadraceError] = []
        start = 0
        for work in batch:
            stop = start + work.rows
            split.append({name: array[start:stop] for name, array in outputs.items()})
            start = stop
        return split

    def _settle(
        self, batch: list[Work], start_s: float, took_s: float, cpu_s: float, outcomes: list[Tensors | HeadraceError]
    ) -> None:
        self._run_s = next_run_s(self._run_s, cpu_s, self._last_s)
        self._last_s = cpu_s
        self._observe(batch, outcomes, start_s, took_s)
        for work, outcome in zip(batch, outcomes, strict=True):
            work.release()
            if isinstance(outcome, HeadraceError):
                work.finish(None, outcome)
            else:
                work.finish(outcome)

    # -- deadlines -----------------------------------------------------------------------------------------------

    def _guard(self, work: Work) -> None:
        """See to it that `work` is answered at its deadline though it still waits or runs."""
        deadline_s = work.ctx.deadline_s
        if deadline_s is None or work.guarded:
            return
        work.guarded = True
        heappush(self._deadlines, (deadline_s, next(self._order), work))
        if self._deadlines[0][2] is work:
            self._arm_deadline()

    def _arm_deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._deadlines:
            delay_s = max(0.0, self._deadlines[0][0] - time.monotonic())
            self._deadline_timer = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        now_s = time.monotonic()
        while self._deadlines and (self._deadlines[0][2].finished or self._deadlines[0][0] <= now_s):
            work = heappop(self._deadlines)[2]
            if not work.finished:
                work.alive(now_s)
        self._arm_deadline()


def _failed(name: str, error: BaseException) -> StageFailed:
    failure = StageFailed(name, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
