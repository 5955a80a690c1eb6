"""Histogram bounds shared by every process, and the quantile that can be read from their counts.

Bounds are fixed and log-spaced, so counts of several processes or replicas can be added bucket by bucket and the
quantile of the sum is as good as that of one process: its error is at most one bucket's width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from headrace.errors import ConfigError

__all__ = ["LATENCY_S", "ROWS", "log_buckets", "quantile"]


def log_buckets(low: float, high: float, per_decade: int = 5) -> tuple[float, ...]:
    """Upper bounds from `low` to `high` (inclusive, both > 0), `per_decade` to each power of ten, three digits each."""
    if not 0 < low < high < math.inf or per_decade < 1:
        raise ConfigError(f"expected 0 < low < high and per_decade >= 1, got {low}, {high}, {per_decade}")
    steps = math.ceil(math.log10(high / low) * per_decade - 1e-9)
    return (*(float(f"{low * 10 ** (k / per_decade):.3g}") for k in range(steps)), float(high))


LATENCY_S = log_buckets(1e-5, 100.0)
"""Seconds: 10 us to 100 s, five bounds a decade."""

ROWS = tuple(float(2**k) for k in range(13))
"""Rows or tokens: powers of two from 1 to 4096."""


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float:
    """The q-quantile of observations of which only bucket counts are known.

    Linear interpolation inside the bucket that holds rank q*n, as Prometheus' `histogram_quantile` does: the first
    bucket starts at 0 (when its bound is positive), and the +Inf bucket answers the highest finite bound.

    Args:
        bounds: n ascending upper bounds.
        counts: n + 1 counts, not cumulative; the last is the +Inf bucket.
        q: 0..1; `ConfigError` otherwise.

    Returns:
        The estimate, or NaN when nothing was observed.
    """
    if not 0 <= q <= 1:
        raise ConfigError(f"expected a quantile in 0..1, got {q}")
    if len(counts) != len(bounds) + 1:
        raise ConfigError(f"expected {len(bounds) + 1} counts for {len(bounds)} bounds, got {len(counts)}")
    total = sum(counts)
    if total == 0:
        return math.nan
    rank = q * total
    index = next(i for i, seen in enumerate(accumulate(counts)) if seen >= rank and seen > 0)
    if index == len(bounds):
        return bounds[-1]
    high = bounds[index]
    low = bounds[index - 1] if index > 0 else min(0.0, high)
    before = sum(counts[:index])
    return low + (high - low) * (rank - before) / counts[index]
