"""Counters, gauges and histograms: code observes numbers into them, a scrape reads them out of one `Registry`.

A registry is made at start-up and passed to whoever measures. A family (`registry.histogram(...)`) has label names;
`family.labels(model="x")` resolves one series once, so that the hot path is a bare `series.observe(seconds)` with no
look-up. A disabled registry hands out one shared series that does nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Lock
from typing import Generic, TypeVar

from headrace.core.telemetry.buckets import LATENCY_S
from headrace.core.telemetry.series import (
    CounterSeries,
    GaugeSeries,
    HistogramSeries,
    OffCounter,
    OffGauge,
    OffHistogram,
)
from headrace.errors import ConfigError

__all__ = ["Counter", "Family", "Gauge", "Histogram", "Registry"]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


S = TypeVar("S", bound=CounterSeries | GaugeSeries | HistogramSeries)
F = TypeVar("F", bound="Counter | Gauge | Histogram")


class Family(Generic[S]):
    """All series of one metric name, keyed by label values. Made by a `Registry`, not by hand.

    A family holds at most `max_series`; from then on unseen label values share one series whose labels all read
    "other", so that labels which clients can choose cannot eat the memory.
    """

    def __init__(
        self, name: str, help: str, label_names: Sequence[str], max_series: int, make: Callable[[], S], off: S | None
    ) -> None:
        self.name = name
        self.help = help
        self.label_names = tuple(label_names)
        self._max_series = max_series
        self._make = make
        self._off = off
        self._lock = Lock()
        self._series: dict[tuple[str, ...], S] = {}

    def labels(self, **values: str) -> S:
        """The series with these label values, made on first use. Resolve it once, outside the hot path.

        Raises `ConfigError` unless exactly the family's label names are given.
        """
        if len(values) != len(self.label_names) or any(name not in values for name in self.label_names):
            raise ConfigError(f"metric {self.name}: expected labels {list(self.label_names)}, got {sorted(values)}")
        if self._off is not None:
            return self._off
        key = tuple(str(values[name]) for name in self.label_names)
        series = self._series.get(key)
        if series is not None:
            return series
        with self._lock:
            if key not in self._series and len(self._series) >= self._max_series:
                key = ("other",) * len(key)
            return self._series.setdefault(key, self._make())

    def remove(self, **values: str) -> None:
        """Forget one series (a model was unloaded); nothing happens when there is none."""
        with self._lock:
            self._series.pop(tuple(str(values.get(name)) for name in self.label_names), None)

    def items(self) -> list[tuple[tuple[str, ...], S]]:
        """Label values and series, as of now."""
        with self._lock:
            return list(self._series.items())


class Counter(Family[CounterSeries]):
    def inc(self, amount: float = 1.0) -> None:
        """Count on the one series of a family without labels."""
        self.labels().inc(amount)


class Gauge(Family[GaugeSeries]):
    def set(self, value: float) -> None:
        """Set the one series of a family without labels."""
        self.labels().set(value)

    def set_function(self, function: Callable[[], float]) -> None:
        """Let a function tell the one series of a family without labels."""
        self.labels().set_function(function)


class Histogram(Family[HistogramSeries]):
    def observe(self, value: float) -> None:
        """Observe into the one series of a family without labels."""
        self.labels().observe(value)


class Registry:
    """Every metric of one process (or of one test). Thread-safe.

    Args:
        enabled: When False, metrics can still be registered and observed, at no cost, and a scrape is empty.
        max_series: Bound on the series of each family.
    """

    def __init__(self, *, enabled: bool = True, max_series: int = 1000) -> None:
        self.enabled = enabled
        self._max_series = max_series
        self._lock = Lock()
        self._families: dict[str, Counter | Gauge | Histogram] = {}
        self._before_scrape: list[Callable[[], None]] = []

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """A total. `name` goes without the `_total` that the exposition adds (it is dropped when given)."""
        name = name.removesuffix("_total")
        off = None if self.enabled else OffCounter()
        return self._add(Counter(name, help, labels, self._max_series, CounterSeries, off))

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        off = None if self.enabled else OffGauge()
        return self._add(Gauge(name, help, labels, self._max_series, GaugeSeries, off))

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_S
    ) -> Histogram:
        """A distribution over fixed `buckets` (ascending upper bounds; default: 10 us to 100 s, five a decade)."""
        bounds = tuple(float(bound) for bound in buckets)
        ascending = all(a < b for a, b in pairwise(bounds))
        if not bounds or not ascending or not all(map(math.isfinite, bounds)):
            raise ConfigError(f"metric {name}: expected finite ascending buckets, got {list(buckets)}")
        if "le" in labels:
            raise ConfigError(f"metric {name}: label 'le' belongs to the buckets of a histogram")
        off = None if self.enabled else OffHistogram(bounds)
        return self._add(Histogram(name, help, labels, self._max_series, lambda: HistogramSeries(bounds), off))

    def before_scrape(self, function: Callable[[], None]) -> None:
        """Call `function()` before every scrape; for readings that are fetched together."""
        with self._lock:
            self._before_scrape.append(function)

    def families(self) -> list[Counter | Gauge | Histogram]:
        """All families in order of registration, after the `before_scrape` functions have run."""
        with self._lock:
            functions = list(self._before_scrape) if self.enabled else []
        for function in functions:
            function()
        with self._lock:
            return list(self._families.values()) if self.enabled else []

    def _add(self, family: F) -> F:
        if not _NAME.fullmatch(family.name):
            raise ConfigError(f"metric name {family.name!r}: expected letters, digits, '_' and ':'")
        for label in family.label_names:
            if not _LABEL.fullmatch(label):
                raise ConfigError(f"metric {family.name}: bad label name {label!r}")
        if len(set(family.label_names)) != len(family.label_names):
            raise ConfigError(f"metric {family.name}: repeated label in {list(family.label_names)}")
        with self._lock:
            if family.name in self._families:
                raise ConfigError(f"metric {family.name} is already registered; keep and share the first one")
            self._families[family.name] = family
        return family
