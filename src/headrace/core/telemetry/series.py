"""One series each of a counter, a gauge and a histogram: plain accumulators that the hot path writes to.

Each series has a re-entrant lock of its own: threads do not contend across series, and a finaliser or a signal handler
that fires inside an update of the same series cannot deadlock with it. The `Off…` series do nothing; they are
what a disabled registry hands out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from threading import RLock

from headrace.core.telemetry.buckets import quantile
from headrace.errors import ConfigError

__all__ = ["CounterSeries", "GaugeSeries", "HistogramSeries", "OffCounter", "OffGauge", "OffHistogram"]


class CounterSeries:
    """One ever-growing number."""

    __slots__ = ("_function", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = RLock()
        self._value = 0.0
        self._function: Callable[[], float] | None = None

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`; raises `ConfigError` when it is negative."""
        if amount < 0:
            raise ConfigError(f"a counter only grows: expected an amount >= 0, got {amount}")
        with self._lock:
            self._value += amount

    def set_function(self, function: Callable[[], float]) -> None:
        """Read the value from `function()` at every scrape; for totals that somebody else already counts."""
        self._function = function

    @property
    def value(self) -> float:
        """The present total; NaN when a function was set and it failed."""
        return self._value if self._function is None else _evaluate(self._function)


class GaugeSeries:
    """One number that goes up and down, or that a function tells at scrape time."""

    __slots__ = ("_function", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = RLock()
        self._value = 0.0
        self._function: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        with self._lock:
            self._value = value

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value += amount

    def dec(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value -= amount

    def set_function(self, function: Callable[[], float]) -> None:
        """Read the value from `function()` at every scrape; a function that raises shows as NaN."""
        self._function = function

    @property
    def value(self) -> float:
        """The present value; NaN when a function was set and it failed."""
        return self._value if self._function is None else _evaluate(self._function)


class HistogramSeries:
    """Counts of observations per bucket, with their sum. `bounds` are upper, inclusive, ascending, without +Inf."""

    __slots__ = ("_counts", "_lock", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._lock = RLock()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Observe each of `values`, taking the lock once."""
        with self._lock:
            for value in values:
                self._counts[bisect_left(self.bounds, value)] += 1
                self._sum += value

    def snapshot(self) -> tuple[list[int], float]:
        """Counts per bucket (the last is +Inf; not cumulative) and the sum, taken together."""
        with self._lock:
            return self._counts.copy(), self._sum

    @property
    def count(self) -> int:
        return sum(self.snapshot()[0])

    @property
    def sum(self) -> float:
        return self._sum

    def quantile(self, q: float) -> float:
        """Estimate the q-quantile (0..1) of everything observed so far; NaN before the first observation."""
        return quantile(self.bounds, self.snapshot()[0], q)


class OffCounter(CounterSeries):
    __slots__ = ()

    def inc(self, amount: float = 1.0) -> None:
        pass

    def set_function(self, function: Callable[[], float]) -> None:
        pass


class OffGauge(GaugeSeries):
    __slots__ = ()

    def set(self, value: float) -> None:
        pass

    def inc(self, amount: float = 1.0) -> None:
        pass

    def dec(self, amount: float = 1.0) -> None:
        pass

    def set_function(self, function: Callable[[], float]) -> None:
        pass


class OffHistogram(HistogramSeries):
    __slots__ = ()

    def observe(self, value: float) -> None:
        pass

    def observe_all(self, values: Sequence[float]) -> None:
        pass


def _evaluate(function: Callable[[], float]) -> float:
    try:
        return float(function())
    except Exception:  # a probe that fails must not take the whole scrape down with it
        return math.nan
