"""A `Registry` in, the text that Prometheus scrapes out; the format and its negotiation are `prometheus_client`'s."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.core.telemetry.metrics import Counter, Gauge, Histogram, Registry

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["Collector", "render"]


class Collector:
    """The view of a `Registry` that `prometheus_client` renders; may also be registered with its own registries."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.families():
            yield _metric(family)


def render(registry: Registry, accept: str = "") -> tuple[bytes, str]:
    """The exposition of all metrics and its content type, as the scraper's `Accept` header asks (text by default)."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(Collector(registry)), content_type


def _metric(family: Counter | Gauge | Histogram) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names = family.label_names
    if isinstance(family, Counter):
        counters = CounterMetricFamily(family.name, family.help, labels=names)
        for values, counter in family.items():
            counters.add_metric(values, counter.value)
        return counters
    if isinstance(family, Gauge):
        gauges = GaugeMetricFamily(family.name, family.help, labels=names)
        for values, gauge in family.items():
            gauges.add_metric(values, gauge.value)
        return gauges
    histograms = HistogramMetricFamily(family.name, family.help, labels=names)
    for values, series in family.items():
        counts, total = series.snapshot()
        bounds = [repr(bound) for bound in series.bounds] + ["+Inf"]
        histograms.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
    return histograms
