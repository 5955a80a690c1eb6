"""What an engine tells of itself: steps, tokens and answers in, Prometheus series and spans out.

`LlmMetrics` makes the families once per registry; each engine resolves its own series from them (`EngineMetrics`).
"""

from __future__ import annotations

import time

from headrace.core.telemetry import ROWS, Registry, Tracer
from headrace.llm.params import FinishReason
from headrace.llm.scheduler import Scheduler
from headrace.llm.sequence import Answer, Request

__all__ = ["EngineMetrics", "LlmMetrics"]


class LlmMetrics:
    """Families with their names and labels."""

    def __init__(self, registry: Registry) -> None:
        model = ("model",)
        histogram, counter, gauge = registry.histogram, registry.counter, registry.gauge
        self.ttft_s = histogram("headrace_llm_ttft_seconds", "From submission to the first token", model)
        self.itl_s = histogram("headrace_llm_itl_seconds", "Between two deliveries of one answer", model)
        self.queue_s = histogram("headrace_llm_queue_seconds", "From submission to the first step", model)
        self.step_s = histogram("headrace_llm_step_seconds", "One step of the model", model)
        self.step_tokens = histogram("headrace_llm_step_tokens", "Tokens computed in one step", model, buckets=ROWS)
        self.prompt_tokens = counter("headrace_llm_prompt_tokens", "Tokens of prompts", model)
        self.cached_tokens = counter("headrace_llm_cached_tokens", "Tokens of prompts found in the cache", model)
        self.generated_tokens = counter("headrace_llm_generated_tokens", "Tokens generated", model)
        self.answers = counter("headrace_llm_answers", "Answers that ended, by reason", (*model, "reason"))
        self.preemptions = counter("headrace_llm_preemptions", "Answers that gave their pages back for a while", model)
        self.evicted = counter("headrace_llm_kv_evicted_pages", "Cached pages given up for others", model)
        self.pages = gauge("headrace_llm_kv_pages", "Pages of keys and values", model)
        self.held = gauge("headrace_llm_kv_held_pages", "Pages held by running answers", model)
        self.cached = gauge("headrace_llm_kv_cached_pages", "Pages that can be found by their content", model)
        self.running = gauge("headrace_llm_running_answers", "Answers that hold pages", model)
        self.waiting = gauge("headrace_llm_waiting_answers", "Answers that wait for pages", model)
        self.watched: dict[str, EngineMetrics] = {}


class EngineMetrics:
    """The series of one engine. Its methods belong to the engine's thread.

    Args:
        metrics: The families; None counts nothing.
        model: Label of the series.
        tracer: Records each request's waiting, prompt and answer as spans below its context's; None records none.
    """

    def __init__(self, metrics: LlmMetrics | None = None, model: str = "", tracer: Tracer | None = None) -> None:
        self._tracer = tracer if tracer is not None and tracer.enabled else None
        self._metrics = metrics = metrics or LlmMetrics(Registry(enabled=False))
        self._model = model
        self._ttft_s = metrics.ttft_s.labels(model=model)
        self._itl_s = metrics.itl_s.labels(model=model)
        self._queue_s = metrics.queue_s.labels(model=model)
        self._step_s = metrics.step_s.labels(model=model)
        self._step_tokens = metrics.step_tokens.labels(model=model)
        self._prompt_tokens = metrics.prompt_tokens.labels(model=model)
        self._cached_tokens = metrics.cached_tokens.labels(model=model)
        self._generated_tokens = metrics.generated_tokens.labels(model=model)
        self._preemptions = metrics.preemptions.labels(model=model)
        self._evicted = metrics.evicted.labels(model=model)
        self._preempted_before = self._evicted_before = 0

    def watch(self, scheduler: Scheduler) -> None:
        """Let the gauges read the scheduler's state at each scrape."""
        pool, label, metrics = scheduler.kv.pool, {"model": self._model}, self._metrics
        metrics.watched[self._model] = self
        metrics.pages.labels(**label).set(pool.n_pages)
        metrics.held.labels(**label).set_function(lambda: pool.held)
        metrics.cached.labels(**label).set_function(lambda: pool.cached)
        metrics.running.labels(**label).set_function(lambda: len(scheduler.running))
        metrics.waiting.labels(**label).set_function(lambda: len(scheduler.waiting))

    def admitted(self, request: Request) -> None:
        """It is about to run for the first time."""
        waited_s = request.admitted_s - request.submitted_s
        self._queue_s.observe(waited_s)
        self._prompt_tokens.inc(len(request.prompt))
        self._cached_tokens.inc(request.cached_tokens)
        if self._tracer is not None:
            self._tracer.record("queue", request.ctx, waited_s)

    def step(self, n_tokens: int, step_s: float, scheduler: Scheduler) -> None:
        self._step_s.observe(step_s)
        self._step_tokens.observe(n_tokens)
        if scheduler.preemptions > self._preempted_before:
            self._preemptions.inc(scheduler.preemptions - self._preempted_before)
            self._preempted_before = scheduler.preemptions
        if scheduler.kv.pool.evicted > self._evicted_before:
            self._evicted.inc(scheduler.kv.pool.evicted - self._evicted_before)
            self._evicted_before = scheduler.kv.pool.evicted

    def tokens(self, answer: Answer, n_tokens: int, now_s: float) -> None:
        """An answer got its next tokens."""
        self._generated_tokens.inc(n_tokens)
        if answer.last_s:
            self._itl_s.observe(now_s - answer.last_s)
        elif not answer.request.first_s:
            request = answer.request
            request.first_s = now_s
            self._ttft_s.observe(now_s - request.submitted_s)
            if self._tracer is not None:
                facts = {"tokens": len(request.prompt), "cached_tokens": request.cached_tokens}
                self._tracer.record("prefill", request.ctx, now_s - request.admitted_s, facts)
        answer.last_s = now_s

    def ended(self, request: Request, reason: FinishReason) -> None:
        """An answer ended; with "error", all those of its request."""
        self._metrics.answers.labels(model=self._model, reason=reason).inc()
        if self._tracer is not None and request.first_s and request.inbox.ended:
            facts = {"tokens": sum(writer.n_tokens for writer in request.writers)}
            self._tracer.record("decode", request.ctx, time.perf_counter() - request.first_s, facts, request.error)

    def forget(self) -> None:
        """The engine is closed: its gauges go, unless another engine of the same name has them; what was counted
        stays."""
        metrics = self._metrics
        if metrics.watched.get(self._model) is not self:
            return
        del metrics.watched[self._model]
        for family in (metrics.pages, metrics.held, metrics.cached, metrics.running, metrics.waiting):
            family.remove(model=self._model)
