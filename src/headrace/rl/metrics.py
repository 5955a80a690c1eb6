"""What training tells of itself while it runs: updates, episodes and agents in, Prometheus series and spans out.

`TrainMetrics` is made once for a registry; `AgentMetrics` likewise for whoever runs agents. Docs: observability.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.core.context import Context
from headrace.core.telemetry import Registry, Tracer, log_buckets
from headrace.rl.algorithms.algorithm import Update

__all__ = ["RETURNS", "AgentMetrics", "TrainMetrics", "WatchedEpisode"]

_SIZES = log_buckets(0.1, 10_000.0, per_decade=3)

RETURNS = (*(-size for size in reversed(_SIZES)), 0.0, *_SIZES)
"""Returns of either sign, to 10,000."""

_LENGTHS = log_buckets(1.0, 1_000_000.0, per_decade=3)


class TrainMetrics:
    """Series of training runs.

    Attributes:
        stages: Seconds spent so far, by stage: collect, learn, evaluate, checkpoint.
    """

    def __init__(self, registry: Registry) -> None:
        name = "headrace_rl"
        self.registry = registry
        self._stage_s = registry.histogram(f"{name}_stage_seconds", "One update's time in a stage", ("stage",))
        self._steps = registry.counter(f"{name}_steps", "Steps of all environments together")
        self._episodes = registry.counter(f"{name}_episodes", "Episodes that ended")
        self._updates = registry.counter(f"{name}_updates", "Updates of the policy")
        self._returns = registry.histogram(f"{name}_episode_return", "Undiscounted returns", buckets=RETURNS)
        self._lengths = registry.histogram(f"{name}_episode_length", "Steps of episodes", buckets=_LENGTHS)
        self._lag = registry.gauge(f"{name}_policy_lag", "Updates that the policy which collected was behind")
        self._losses = registry.gauge(f"{name}_loss", "Numbers of the newest update, by name", ("name",))
        self._evaluated = registry.gauge(f"{name}_eval_return", "Mean return of the newest evaluation")
        self.stages: dict[str, float] = {}

    def update(self, update: Update) -> None:
        self._observe("collect", update.collect_s)
        self._observe("learn", update.learn_s)
        self._updates.inc()
        self._steps.inc(update.steps)
        self._episodes.inc(update.stats.episodes)
        for total, length in zip(update.stats.returns.tolist(), update.stats.lengths.tolist(), strict=True):
            self._returns.observe(total)
            self._lengths.observe(length)
        self._lag.set(update.lag)
        for name, value in update.losses.items():
            self._losses.labels(name=name).set(value)

    def evaluated(self, mean_return: float) -> None:
        self._evaluated.set(mean_return)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what is done within."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._observe(name, time.perf_counter() - began_s)

    def _observe(self, stage: str, seconds: float) -> None:
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        self._stage_s.labels(stage=stage).observe(seconds)


class AgentMetrics:
    """Series of agents, and spans of those that are sampled: one an episode, below it one for each action, tagged with
    `agent_id` and `episode_step`.

    Args:
        tracer: None records no spans.
    """

    def __init__(self, registry: Registry, tracer: Tracer | None = None) -> None:
        name = "headrace_rl_agent"
        self._act_s = registry.histogram(f"{name}_act_seconds", "From an observation to the agent's action")
        self._episodes = registry.counter(f"{name}_episodes", "Episodes of agents, by how they ended", ("outcome",))
        self._returns = registry.histogram(f"{name}_episode_return", "Undiscounted returns", buckets=RETURNS)
        self._unread = registry.gauge(f"{name}_unread_episodes", "Finished episodes that nobody has taken yet")
        self._tracer = tracer or Tracer()

    def watch(self, unread: Callable[[], int]) -> None:
        """Let the gauge read how many episodes wait at each scrape."""
        self._unread.set_function(unread)

    def began(self, agent: int, number: int) -> WatchedEpisode:
        return WatchedEpisode(self, self._tracer, agent, number)


class WatchedEpisode:
    """An episode of an agent under way; its span, if it is sampled, is open until `ended`."""

    def __init__(self, metrics: AgentMetrics, tracer: Tracer, agent: int, number: int) -> None:
        self._metrics, self._tracer, self._agent = metrics, tracer, agent
        self._ctx = Context("untraced") if not tracer.enabled else Context()
        self._span = tracer.root("episode", self._ctx, attributes={"agent_id": agent, "episode": number})
        self._span.__enter__()

    def acted(self, step: int, seconds: float) -> None:
        self._metrics._act_s.observe(seconds)
        self._tracer.record("act", self._ctx, seconds, {"agent_id": self._agent, "episode_step": step})

    def ended(self, outcome: str, total: float) -> None:
        self._metrics._episodes.labels(outcome=outcome).inc()
        self._metrics._returns.observe(total)
        self._span.set("outcome", outcome)
        self._span.__exit__(None, None, None)
