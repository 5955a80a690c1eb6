"""Proximal policy optimisation (Schulman et al. 2017) of MLP policies: trajectories in, better parameters out, fused in
native code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headrace.rl.learners.native import NativeLearner
from headrace.rl.learners.settings import Schedule, check_count, check_flag, check_number, check_schedule, scheduled
from headrace.rl.policy import Floats, MlpSpec

__all__ = ["NativePpo", "PpoConfig"]


@dataclass(frozen=True, slots=True)
class PpoConfig:
    """Settings of PPO; None switches a limit off. Raises `ConfigError` that names a value out of range.

    The loss of a minibatch is `policy + value_coef * value - entropy_coef * entropy`, with value = 1/2 mean (V - R)^2.
    """

    learning_rate: float = 2.5e-4
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.99
    gae_lambda: float = 0.95
    epochs: int = 4
    minibatches: int = 8
    clip: float | None = 0.2
    """Of the ratio of probabilities: 1 - clip … 1 + clip."""
    value_clip: float | None = None
    """How far the critic may go from what it said when the trajectory was collected."""
    normalise_advantages: bool = True
    """To mean 0 and standard deviation 1 in each minibatch."""
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    entropy_schedule: Schedule = "constant"
    max_grad_norm: float | None = 0.5
    """Of all gradients together."""
    target_kl: float | None = None
    """An update ends before the minibatch whose approximate KL divergence from the old policy is above."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches"):
            check_count("PpoConfig", name, getattr(self, name))
        for name in ("learning_rate", "value_coef", "entropy_coef"):
            check_number("PpoConfig", name, getattr(self, name), 0.0)
        for name in ("gamma", "gae_lambda"):
            check_number("PpoConfig", name, getattr(self, name), 0.0, 1.0)
        for name in ("clip", "value_clip", "max_grad_norm", "target_kl", "adam_epsilon"):
            check_number("PpoConfig", name, getattr(self, name), 0.0, above=True)
        for name in ("adam_beta1", "adam_beta2"):
            check_number("PpoConfig", name, getattr(self, name), 0.0, 1.0 - 1e-9)
        for name in ("learning_rate_schedule", "entropy_schedule"):
            check_schedule("PpoConfig", name, getattr(self, name))
        check_flag("PpoConfig", "normalise_advantages", self.normalise_advantages)

    def options(self, progress: float) -> dict[str, Any]:
        """What the native learner is told at `progress`, the part of the training that is done (0 … 1)."""
        return {
            "epochs": self.epochs,
            "minibatches": self.minibatches,
            "ratio": True,
            "clip": _limit(self.clip),
            "value_clip": _limit(self.value_clip),
            "normalise_advantages": self.normalise_advantages,
            "value_coef": self.value_coef,
            "entropy_coef": scheduled(self.entropy_coef, self.entropy_schedule, progress),
            "max_grad_norm": _limit(self.max_grad_norm),
            "target_kl": _limit(self.target_kl),
            "learning_rate": scheduled(self.learning_rate, self.learning_rate_schedule, progress),
            "beta1": self.adam_beta1,
            "beta2": self.adam_beta2,
            "epsilon": self.adam_epsilon,
        }


def _limit(value: float | None) -> float:
    """Infinity for a limit that is off."""
    return math.inf if value is None else value


class NativePpo(NativeLearner):
    """PPO on threads of its own.

    `parameters`: float32[n_parameters(spec)], copied. `seed`: of the shuffles. `threads`: 0 for one a usable CPU; how
    many changes no bit of the result.
    """

    def __init__(
        self, spec: MlpSpec, config: PpoConfig, parameters: Floats, *, seed: int = 0, threads: int = 0
    ) -> None:
        super().__init__(spec, config, parameters, seed=seed, threads=threads)
