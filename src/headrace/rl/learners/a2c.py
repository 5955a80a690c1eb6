"""Synchronous advantage actor-critic (Mnih et al. 2016) of MLP policies: one step of Adam over the whole trajectory, in
native code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headrace.rl.learners.native import NativeLearner
from headrace.rl.learners.settings import Schedule, check_flag, check_number, check_schedule, scheduled
from headrace.rl.policy import Floats, MlpSpec

__all__ = ["A2cConfig", "NativeA2c"]


@dataclass(frozen=True, slots=True)
class A2cConfig:
    """Settings of A2C; None switches a limit off. Raises `ConfigError` that names a value out of range.

    The loss is `-mean(log pi(a|x) A) + value_coef * value - entropy_coef * entropy`, with value = 1/2 mean (V - R)^2.
    """

    learning_rate: float = 7e-4
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.99
    gae_lambda: float = 1.0
    normalise_advantages: bool = False
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    entropy_schedule: Schedule = "constant"
    max_grad_norm: float | None = 0.5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("learning_rate", "value_coef", "entropy_coef"):
            check_number("A2cConfig", name, getattr(self, name), 0.0)
        for name in ("gamma", "gae_lambda"):
            check_number("A2cConfig", name, getattr(self, name), 0.0, 1.0)
        for name in ("max_grad_norm", "adam_epsilon"):
            check_number("A2cConfig", name, getattr(self, name), 0.0, above=True)
        for name in ("adam_beta1", "adam_beta2"):
            check_number("A2cConfig", name, getattr(self, name), 0.0, 1.0 - 1e-9)
        for name in ("learning_rate_schedule", "entropy_schedule"):
            check_schedule("A2cConfig", name, getattr(self, name))
        check_flag("A2cConfig", "normalise_advantages", self.normalise_advantages)

    def options(self, progress: float) -> dict[str, Any]:
        """What the native learner is told at `progress`, the part of the training that is done (0 … 1)."""
        return {
            "epochs": 1,
            "minibatches": 1,
            "ratio": False,
            "clip": math.inf,
            "value_clip": math.inf,
            "normalise_advantages": self.normalise_advantages,
            "value_coef": self.value_coef,
            "entropy_coef": scheduled(self.entropy_coef, self.entropy_schedule, progress),
            "max_grad_norm": math.inf if self.max_grad_norm is None else self.max_grad_norm,
            "target_kl": math.inf,
            "learning_rate": scheduled(self.learning_rate, self.learning_rate_schedule, progress),
            "beta1": self.adam_beta1,
            "beta2": self.adam_beta2,
            "epsilon": self.adam_epsilon,
        }


class NativeA2c(NativeLearner):
    """A2C on threads of its own; arguments as those of `NativePpo`."""

    def __init__(
        self, spec: MlpSpec, config: A2cConfig, parameters: Floats, *, seed: int = 0, threads: int = 0
    ) -> None:
        super().__init__(spec, config, parameters, seed=seed, threads=threads)
