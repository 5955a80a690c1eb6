"""What every way to learn is to a training run: settings go in when it is made, updates and evaluations come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from headrace.core.context import Context
from headrace.rl.checkpoint import Checkpoint
from headrace.rl.spec import EnvSpec
from headrace.rl.trajectory import EpisodeStats

__all__ = ["Algorithm", "Evaluation", "Remembers", "Update"]

Evaluation: TypeAlias = EpisodeStats
"""Whole greedy episodes."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one update did: `steps` of all environments together, the episodes that ended in them, numbers
    of the learner by name, seconds, and how many updates the policy that collected was behind."""

    steps: int
    stats: EpisodeStats
    losses: Mapping[str, float]
    collect_s: float
    learn_s: float
    lag: int


class Algorithm(Protocol):
    """One call at a time."""

    env_spec: EnvSpec

    def update(self, progress: float, ctx: Context | None) -> Update:
        """Collect and learn. `progress`: the part of the training that is done (0 … 1), which schedules go by."""

    def evaluate(self, episodes: int, seed: int) -> Evaluation:
        """Greedy episodes, on seeds that training does not use."""

    def state(self) -> Checkpoint:
        """Arrays and facts, enough to go on."""

    def load(self, checkpoint: Checkpoint) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Remembers(Protocol):
    """An algorithm with a memory too large for a checkpoint: a file beside it."""

    def save_memory(self, path: Path) -> None:
        """Write it; whole or not at all. Raises `Unavailable` where it cannot be written."""

    def load_memory(self, path: Path) -> None:
        """Remember what was written, before `load`. Raises `NotFound`, `IntegrityError` or `InvalidInput`."""
