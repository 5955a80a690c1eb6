"""What pipelines tell of their stages: durations and errors in, metric series and spans out."""

from __future__ import annotations

from headrace.core.context import Context
from headrace.core.telemetry import HistogramSeries, Registry, Tracer

__all__ = ["StageObserver"]


class StageObserver:
    """Implements `serve.plan.Observer`: one histogram and one error counter per stage, and a span where the request is
    traced."""

    def __init__(self, registry: Registry, tracer: Tracer | None = None) -> None:
        stage = ("pipeline", "stage")
        self._seconds = registry.histogram("headrace_stage_seconds", "One run of a pipeline's stage", stage)
        self._failures = registry.counter("headrace_stage_failures", "Runs of a stage that raised", (*stage, "error"))
        self._series: dict[tuple[str, str], HistogramSeries] = {}
        self._tracer = tracer if tracer is not None and tracer.enabled else None

    def stage(
        self, pipeline: str, stage: str, ctx: Context, started_s: float, seconds: float, error: BaseException | None, /
    ) -> None:
        series = self._series.get((pipeline, stage))
        if series is None:
            series = self._series[pipeline, stage] = self._seconds.labels(pipeline=pipeline, stage=stage)
        series.observe(seconds)
        if error is not None:
            self._failures.labels(pipeline=pipeline, stage=stage, error=type(error).__name__).inc()
        if self._tracer is not None:
            self._tracer.record(stage, ctx, seconds, {"pipeline": pipeline}, error)
