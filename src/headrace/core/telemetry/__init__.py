"""The one place that owns metrics and spans: code observes into a `Registry`, `render` shows it to Prometheus."""

from __future__ import annotations

from headrace.core.telemetry.buckets import LATENCY_S, ROWS, log_buckets, quantile
from headrace.core.telemetry.exposition import Collector, render
from headrace.core.telemetry.metrics import Counter, Gauge, Histogram, Registry
from headrace.core.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries

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
    "Registry",
    "log_buckets",
    "quantile",
    "render",
]
