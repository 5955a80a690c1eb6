"""The one place that owns metrics and spans: numbers go into a `Registry`, spans into a `Tracer`, both passed in."""

from __future__ import annotations

from headrace.core.telemetry.buckets import LATENCY_S, ROWS, log_buckets, quantile
from headrace.core.telemetry.exposition import Collector, render
from headrace.core.telemetry.metrics import Counter, Gauge, Histogram, Registry
from headrace.core.telemetry.process import LoopLag, ProcessMetrics
from headrace.core.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries
from headrace.core.telemetry.traceparent import parse_traceparent
from headrace.core.telemetry.tracing import Span, Tracer, TraceSettings

__all__ = [
    "LATENCY_S",
    "ROWS",
    "Collector",
    "Counter",
    "CounterSeries",
    "Gauge",
    "GaugeSeries",
    "Histogram",
    "HistogramSeries",
    "LoopLag",
    "ProcessMetrics",
    "Registry",
    "Span",
    "TraceSettings",
    "Tracer",
    "log_buckets",
    "parse_traceparent",
    "quantile",
    "render",
]
