"""The settings that learners from replayed steps share, checked when they are given."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.errors import ConfigError
from headrace.rl.learners.settings import Schedule, check_count, check_flag, check_number, check_schedule

__all__ = ["ReplayConfig"]


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Settings of `DqnConfig` and `SacConfig` alike; None switches a limit off. "Steps" are those of all environments
    together. Raises `ConfigError` that names a value out of range."""

    learning_rate: float = 1e-3
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.99
    n_step: int = 1
    """Rewards in a row before the value of what comes then is bootstrapped."""
    batch: int = 64
    """Rows of a minibatch."""
    replay: int = 100_000
    """Rows that are remembered."""
    prioritised: bool = False
    """Draw rows by the size of their last error (Schaul et al. 2016) instead of evenly."""
    priority_alpha: float = 0.6
    priority_beta: float = 0.4
    """Of the weights that correct for it; goes to 1 as the training gets on."""
    learning_starts: int = 1_000
    """Steps, with random actions, before the first update."""
    train_every: int = 4
    """Steps between rounds of updates."""
    updates: int = 1
    """Minibatches of a round."""
    target_every: int = 1
    """Updates between those of the target network."""
    tau: float = 1.0
    """How far the target network then goes towards the other one; 1: all the way."""
    max_grad_norm: float | None = None
    """Of the gradients of a loss together."""
    adam_epsilon: float = 1e-8

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_step", "batch", "replay", "learning_starts", "train_every", "updates", "target_every"):
            check_count(owner, name, getattr(self, name))
        for name in ("learning_rate",):
            check_number(owner, name, getattr(self, name), 0.0)
        for name in ("gamma", "priority_alpha", "priority_beta"):
            check_number(owner, name, getattr(self, name), 0.0, 1.0)
        check_number(owner, "tau", self.tau, 0.0, 1.0, above=True)
        for name in ("max_grad_norm", "adam_epsilon"):
            check_number(owner, name, getattr(self, name), 0.0, above=True)
        check_schedule(owner, "learning_rate_schedule", self.learning_rate_schedule)
        for field in fields(self):
            if field.type == "bool":
                check_flag(owner, field.name, getattr(self, field.name))
        if self.replay < self.batch:
            raise ConfigError(f"{owner}.replay: expected at least a minibatch of {self.batch} rows, got {self.replay}")

    def beta(self, progress: float) -> float:
        """The exponent of the weights at `progress` (0 … 1)."""
        return self.priority_beta + (1.0 - self.priority_beta) * min(max(progress, 0.0), 1.0)
