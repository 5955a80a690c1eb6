"""The inference plane's metric families, made once per server; a served model resolves its own series from them."""

from __future__ import annotations

from collections import Counter

from headrace.core.telemetry import ROWS, Registry
from headrace.errors import HeadraceError

__all__ = ["ModelSeries", "ServeMetrics"]


class ServeMetrics:
    """Families with their names and labels; see docs/observability.md for how to read them."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        model = ("model", "version")
        self.request_s = registry.histogram(
            "headrace_model_request_seconds", "Answered requests, from submission to outcome", model
        )
        self.queue_s = registry.histogram("headrace_model_queue_seconds", "Wait of a request before its run", model)
        self.run_s = registry.histogram("headrace_model_run_seconds", "One call of the backend", model)
        self.batch_rows = registry.histogram("headrace_model_batch_rows", "Rows in one call", model, buckets=ROWS)
        self.failures = registry.counter(
            "headrace_model_failures", "Requests that ended in an error", (*model, "error")
        )
        self.queued = registry.gauge("headrace_model_queued_requests", "Requests waiting", model)
        self.http_s = registry.histogram("headrace_http_request_seconds", "HTTP requests", ("route", "status"))
        self.http_busy = registry.gauge("headrace_http_requests_in_flight", "HTTP requests being answered")
        self.connections = registry.gauge("headrace_http_connections", "Open connections")
        self.holders: Counter[tuple[str, str]] = Counter()
        self.refused = registry.counter("headrace_http_refused", "Requests shed before any work", ("reason",))


class ModelSeries:
    """The series of one model version. `last_run_s`: `time.time()` of the newest run."""

    def __init__(self, metrics: ServeMetrics, model: str, version: str) -> None:
        self._metrics = metrics
        self._labels = {"model": model, "version": version}
        metrics.holders[model, version] += 1
        self.request_s = metrics.request_s.labels(**self._labels)
        self.queue_s = metrics.queue_s.labels(**self._labels)
        self.run_s = metrics.run_s.labels(**self._labels)
        self.batch_rows = metrics.batch_rows.labels(**self._labels)
        self.queued = metrics.queued.labels(**self._labels)
        self.failed_count = 0
        self.failed_s = 0.0
        self.last_run_s = 0.0

    def failed(self, error: HeadraceError, took_s: float) -> None:
        self.failed_count += 1
        self.failed_s += took_s
        self._metrics.failures.labels(**self._labels, error=type(error).__name__).inc()

    def forget(self) -> None:
        """Drop the series of a version that is gone, all but its failures (a counter may not vanish mid-incident).

        A reload of the same version shares them: they stay as long as one of the two is served.
        """
        metrics, key = self._metrics, (self._labels["model"], self._labels["version"])
        metrics.holders[key] -= 1
        if metrics.holders[key] > 0:
            return
        for family in (metrics.request_s, metrics.queue_s, metrics.run_s, metrics.batch_rows, metrics.queued):
            family.remove(**self._labels)
