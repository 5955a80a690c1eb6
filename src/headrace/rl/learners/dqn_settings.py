"""Settings of deep Q-learning."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rl.learners.replay_settings import ReplayConfig
from headrace.rl.learners.settings import check_count, check_number

__all__ = ["DqnConfig"]


@dataclass(frozen=True, slots=True)
class DqnConfig(ReplayConfig):
    """Settings of DQN, with those of `ReplayConfig`. Raises `ConfigError` that names a value out of range."""

    n_step: int = 3
    tau: float = 0.01
    max_grad_norm: float | None = 10.0
    double: bool = True
    """The network itself, not its target, says which of the next actions is best."""
    dueling: bool = False
    """Apart: what the situation is worth, and what each action adds."""
    epsilon_start: float = 1.0
    """The part of random actions; goes evenly to `epsilon_end` in `epsilon_steps` steps."""
    epsilon_end: float = 0.05
    epsilon_steps: int = 10_000

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        for name in ("epsilon_start", "epsilon_end"):
            check_number("DqnConfig", name, getattr(self, name), 0.0, 1.0)
        check_count("DqnConfig", "epsilon_steps", self.epsilon_steps)

    def epsilon(self, steps: int) -> float:
        """The part of random actions after so many steps of all environments."""
        done = min(steps / self.epsilon_steps, 1.0)
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done
