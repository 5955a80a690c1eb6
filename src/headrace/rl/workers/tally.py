"""Counts of what went wrong in workers, as plain numbers and as metrics: events in, totals out."""

from __future__ import annotations

from collections import Counter

from headrace.core.telemetry import Registry
from headrace.rl.workers.faults import Fault

__all__ = ["Tally", "WorkerMetrics"]


class WorkerMetrics:
    """The metrics of all pools of a process; made once for a registry and passed to each."""

    def __init__(self, registry: Registry) -> None:
        name = "headrace_rl_worker"
        self.faults = registry.counter(f"{name}_faults_total", "Faults of environments, by kind.", ["kind"])
        self.restarts = registry.counter(f"{name}_restarts_total", "Worker processes replaced, by reason.", ["kind"])
        self.lost = registry.counter(f"{name}_lost_episodes_total", "Episodes truncated by a fault.")


class Tally:
    """Counts of one pool: `faults` and `restarts` by kind; `lost_episodes`, truncated by a fault; the `last` fault."""

    def __init__(self, metrics: WorkerMetrics | None = None) -> None:
        self._metrics = metrics or WorkerMetrics(Registry(enabled=False))
        self.faults: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.lost_episodes = 0
        self.last: Fault | None = None

    def fault(self, fault: Fault) -> None:
        self.faults[fault.kind] += 1
        self.last = fault
        self._metrics.faults.labels(kind=fault.kind).inc()

    def restart(self, kind: str) -> None:
        self.restarts[kind] += 1
        self._metrics.restarts.labels(kind=kind).inc()

    def lose(self) -> None:
        self.lost_episodes += 1
        self._metrics.lost.inc()
