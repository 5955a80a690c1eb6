"""Settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rl.learners.replay_settings import ReplayConfig
from headrace.rl.learners.settings import check_number

__all__ = ["SacConfig"]


@dataclass(frozen=True, slots=True)
class SacConfig(ReplayConfig):
    """Settings of SAC, with those of `ReplayConfig`; `learning_rate` is that of the critics. Raises `ConfigError` that
    names a value out of range."""

    batch: int = 256
    train_every: int = 1
    tau: float = 0.005
    actor_learning_rate: float = 3e-4
    temperature: float | None = None
    """What an unit of entropy is worth; None: found so that the entropy is `target_entropy`."""
    first_temperature: float = 1.0
    """Where the search for it begins."""
    temperature_learning_rate: float = 1e-3
    target_entropy: float | None = None
    """In nats, of actions scaled to -1 … 1; None: minus the numbers of an action."""

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        for name in ("actor_learning_rate", "temperature", "temperature_learning_rate"):
            check_number("SacConfig", name, getattr(self, name), 0.0)
        check_number("SacConfig", "first_temperature", self.first_temperature, 0.0, above=True)
        check_number("SacConfig", "target_entropy", self.target_entropy, -1e6, 1e6)
