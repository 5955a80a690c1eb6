"""Memory and descriptors of a process and its children over time: one sample a call in, medians and a slope out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

__all__ = ["Samples"]

MINUTE = 60
JUDGED_AFTER = 3 * MINUTE
GROWTH = 1.15
GROWTH_MB = 24.0
SPARE_FDS = 16
CONNECTION_MB = 3 * 16.8
"""The largest request of the mix three times over: as it came in, as a batch, as the answer."""
SPARE_MB = 256.0


class Samples:
    """Samples taken once a second; `rss_mb` and `fds` grow by one each time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.rss_mb: list[float] = []
        self.fds: list[int] = []

    def take(self) -> None:
        rss_pages = fds = 0
        for pid in _family(self._pid):
            with contextlib.suppress(OSError):
                rss_pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                fds += len(os.listdir(f"/proc/{pid}/fd"))
        self.rss_mb.append(rss_pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        self.fds.append(fds)

    def report(self) -> dict[str, Any]:
        after = self.rss_mb[MINUTE:]
        return {
            "rss_first_minute_mb": round(median(self.rss_mb[:MINUTE]), 1),
            "rss_last_minute_mb": round(median(self.rss_mb[-MINUTE:]), 1),
            "rss_max_mb": round(max(self.rss_mb), 1),
            "rss_slope_mb_per_min": round(_slope(after) * MINUTE, 3) if len(after) >= MINUTE else None,
            "fds_start": self.fds[0],
            "fds_max": max(self.fds),
            "fds_end": self.fds[-1],
        }

    def problems(self, connections: int) -> list[str]:
        """What points to a leak: more memory than open requests can need, growth that lasts, descriptors left over.

        Growth is judged from the second minute, as caches fill in the first. A request that is held after its answer
        grows memory to a plateau instead; the bound for what `connections` requests can need at a time shows that.
        """
        found = []
        bound = self.rss_mb[0] + connections * CONNECTION_MB + SPARE_MB
        if (most := max(self.rss_mb)) > bound:
            found.append(f"memory reached {most:.0f} MB; {connections} open requests can explain {bound:.0f} MB")
        if len(self.rss_mb) >= JUDGED_AFTER:
            early, late = median(self.rss_mb[MINUTE : 2 * MINUTE]), median(self.rss_mb[-MINUTE:])
            if late > early * GROWTH + GROWTH_MB:
                found.append(f"memory grew from {early:.1f} MB in the second minute to {late:.1f} MB in the last")
        if self.fds[-1] > self.fds[0] + SPARE_FDS:
            found.append(f"descriptors leaked: {self.fds[0]} before the load, {self.fds[-1]} after it")
        return found


def _slope(values: Sequence[float]) -> float:
    """Least-squares slope of values taken at equal steps, per step; at least two values."""
    return linear_regression(range(len(values)), values).slope


def _family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                pids += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())
    return pids
