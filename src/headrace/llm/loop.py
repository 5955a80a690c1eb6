"""The engine's one thread: requests in, chunks out, a step at a time.

    schedule -> build -> step -> choose -> deliver

Callers leave requests and cancellations in queues that need no lock; the thread empties them between steps and sleeps
when there is nothing to do. Passes over whole texts (`Probe`) take turns with the steps.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from threading import Thread, current_thread

from headrace.core.waiter import ThreadWaiter
from headrace.errors import DeadlineExceeded, HeadraceError, StageFailed, Unavailable
from headrace.llm.choose import Choice, Due, choose
from headrace.llm.execution import Executor, Output
from headrace.llm.inbox import Wakeups
from headrace.llm.metrics import EngineMetrics
from headrace.llm.params import FinishReason
from headrace.llm.probe import Probe
from headrace.llm.scheduler import BatchBuilder, Scheduler
from headrace.llm.sequence import Answer, Phase, Request

__all__ = ["Loop"]

_log = logging.getLogger(__name__)


class Loop:
    """Runs `executor` for whoever submits. `submit`, `probe`, `cancelled` and `stop` may be called from any thread.

    Attributes:
        error: Why nothing is accepted any more, None while it runs.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, batches: BatchBuilder, metrics: EngineMetrics) -> None:
        self.error: HeadraceError | None = None
        self._executor = executor
        self._scheduler = scheduler
        self._batches = batches
        self._metrics = metrics
        self._arrived: deque[Request] = deque()
        self._cancelled: deque[Request] = deque()
        self._probes: deque[Probe] = deque()
        self._waiter = ThreadWaiter()
        self._wakeups = Wakeups()
        self._next_deadline_s = math.inf
        self._stop_s = math.inf
        self._thread = Thread(target=self._run, name="headrace-llm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def queued(self) -> int:
        """Answers that wait for pages, new or preempted, and passes over texts."""
        arrived = sum([len(request.writers) for request in list(self._arrived)])
        return arrived + len(self._scheduler.waiting) + len(self._probes)

    def cancelled(self, request: Request) -> None:
        """Somebody wants no more of the request. Needs no lock and wakes nobody: the thread is awake as long as there
        are requests."""
        self._cancelled.append(request)

    def submit(self, request: Request) -> None:
        self._arrived.append(request)
        self._waiter.wake()
        if self.error is not None:  # the thread may have ended without seeing the request
            request.inbox.fail(self.error)

    def probe(self, probe: Probe) -> None:
        self._probes.append(probe)
        self._waiter.wake()
        if self.error is not None and not self._thread.is_alive():  # else the thread gives up its pages as well
            probe.fail(self.error)

    def stop(self, drain_s: float) -> None:
        """Accept nothing more, end what is not finished after `drain_s` seconds, and wait for the thread to end."""
        self.error = self.error or Unavailable("the engine is closed")
        self._stop_s = time.monotonic() + drain_s
        self._waiter.wake()
        if current_thread() is not self._thread:  # where the last reference to an engine goes is not ours to choose
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._end_all(Unavailable("the engine was closed"))
        except BaseException as error:  # whatever it is, nobody may be left waiting
            _log.exception("the engine's thread failed")
            self.error = Unavailable(f"the engine failed and has to be loaded again: {type(error).__name__}: {error}")
            self._end_all(_wrapped("engine", error))

    def _turn(self) -> bool:
        """Take what came in, then run one step or sleep. False when it is time to end."""
        self._receive()
        busy = self._scheduler.busy or bool(self._probes)
        if self._stop_s < math.inf and (not busy or time.monotonic() >= self._stop_s):
            return False
        if not busy:
            self._waiter.wait(None)
        if self._scheduler.busy:
            self._step()
        if self._probes:
            self._probe()
        return True

    def _step(self) -> None:
        run = self._scheduler.schedule(time.perf_counter())
        if not run:
            return
        batch = self._batches.build(run)
        began_s = time.perf_counter()
        output = self._executor.step(batch)
        step_s = time.perf_counter() - began_s
        self._scheduler.observe(run, step_s)
        self._deliver(self._choose(run, output))
        self._metrics.step(len(batch.tokens), step_s, self._scheduler)

    def _choose(self, run: list[tuple[Answer, int]], output: Output) -> list[tuple[Answer, Choice]]:
        """Note what was computed, and choose the next tokens of the answers that have no token left to compute."""
        answers, due = [], []
        for answer, n in run:
            pending = answer.pending
            self._scheduler.computed(answer, min(n, pending))
            if n < pending:
                continue
            answers.append(answer)
            due.append(Due(answer.writer.sampler, answer.guesses))
            if len(answer.tokens) == answer.n_prompt and len(answer.request.writers) > 1:
                for branch in self._scheduler.branch(answer):
                    answers.append(branch)
                    due.append(Due(branch.writer.sampler, (), fresh=False))
        return list(zip(answers, choose(due, output), strict=True))

    def _deliver(self, chosen: list[tuple[Answer, Choice]]) -> None:
        """Every answer writes its tokens; readers are woken together."""
        now_s = time.perf_counter()
        for answer, (tokens, samples, error) in chosen:
            request = answer.request
            if answer.phase is Phase.ENDED:  # another answer of its request failed just now
                continue
            if error is not None:
                self._fail(request, error)
                continue
            answer.tokens.extend(tokens)
            if len(tokens) > 1:
                self._scheduler.computed(answer, len(tokens) - 1)
            try:
                chunk = answer.writer.write(tokens, samples, len(answer.guesses), request.cached_tokens)
            except Exception as failure:  # this request's alone
                self._fail(request, _wrapped("answer", failure))
                continue
            self._metrics.tokens(answer, len(tokens), now_s)
            self._wakeups.add(request.inbox.put(chunk))
            if chunk.finish_reason:
                self._scheduler.end(answer)
                self._ended(request, chunk.finish_reason)
        self._wakeups.wake()

    def _probe(self) -> None:
        probe = self._probes[0]
        try:
            probe.check()
            if probe.advance(self._executor, self._scheduler.kv, self._scheduler.prompt_share):
                self._probes.popleft()
        except Exception as error:  # this caller's alone; if the executor is broken, the next step will tell
            self._probes.popleft()
            probe.fail(_wrapped("probe", error))

    def _receive(self) -> None:
        """Take in new requests; end those that were cancelled or are out of time."""
        while self._arrived:
            request = self._arrived.popleft()
            if not request.inbox.ended:
                self._scheduler.add(request)
                self._next_deadline_s = min(self._next_deadline_s, _deadline_s(request))
        if time.monotonic() >= self._next_deadline_s:
            self._expire()
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.inbox.ended:
                self._cancel(request)
        self._wakeups.wake()

    def _expire(self) -> None:
        """End the contexts whose time is up, which cancels their requests; find the next deadline."""
        now_s, self._next_deadline_s = time.monotonic(), math.inf
        for request in {answer.request for answer in self._scheduler.answers()}:
            deadline_s = _deadline_s(request)
            if deadline_s <= now_s:
                request.ctx.cancel(DeadlineExceeded(f"request {request.ctx.request_id}: deadline exceeded"))
            else:
                self._next_deadline_s = min(self._next_deadline_s, deadline_s)

    def _cancel(self, request: Request) -> None:
        if request.error is not None:
            self._fail(request, request.error)
            return
        for answer in list(request.answers):
            self._scheduler.end(answer)
        for writer in request.writers:
            if not writer.finish_reason:
                self._wakeups.add(request.inbox.put(writer.end("cancelled", request.cached_tokens)))
                self._ended(request, "cancelled")

    def _fail(self, request: Request, error: HeadraceError) -> None:
        """End all answers of a request with an error."""
        for answer in list(request.answers):
            self._scheduler.end(answer)
        request.error = error
        self._wakeups.add(request.inbox.fail(error))
        self._ended(request, "error")

    def _ended(self, request: Request, reason: FinishReason) -> None:
        """An answer ended, or all of them."""
        self._metrics.ended(request, reason)
        if request.inbox.ended:
            request.undo()

    def _end_all(self, error: HeadraceError) -> None:
        for request in {answer.request for answer in self._scheduler.answers()} | set(self._arrived):
            if not request.inbox.ended:
                self._fail(request, error)
        while self._probes:
            self._probes.popleft().fail(error)
        self._wakeups.wake()
        self._metrics.forget()


def _deadline_s(request: Request) -> float:
    return math.inf if request.ctx.deadline_s is None else request.ctx.deadline_s


def _wrapped(where: str, error: BaseException) -> HeadraceError:
    """The error as one that may be shown to a client."""
    if isinstance(error, HeadraceError):
        return error
    failure = StageFailed(where, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
