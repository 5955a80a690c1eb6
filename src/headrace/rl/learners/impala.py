"""The learner of IMPALA (Espeholt et al. 2018): trajectories of an older policy in, better parameters out.

V-trace corrects for the policy's age; the gradient and Adam run fused in native code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.rl.learners.native import Losses, NativeLearner
from headrace.rl.learners.settings import Schedule, check_count, check_number, check_schedule, scheduled
from headrace.rl.policy import Categorical, Floats, MlpSpec, Policy, views
from headrace.rl.returns import Steps, vtrace

if TYPE_CHECKING:
    from headrace.rl.trajectory import Trajectory

__all__ = ["ImpalaConfig", "NativeImpala", "log_probs_of"]


@dataclass(frozen=True, slots=True)
class ImpalaConfig:
    """Settings of IMPALA. Raises `ConfigError` that names a value out of range.

    The loss is `-mean(log pi(a|x) A) + value_coef * value - entropy_coef * entropy`, with value = 1/2 mean (V - v)^2,
    and A and v by V-trace.
    """

    learning_rate: float = 1e-3
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.99
    gae_lambda: float = 1.0
    """Lambda of V-trace."""
    clip_rho: float = 1.0
    """Of the ratios of probabilities in temporal differences: which policy's value is learnt."""
    clip_c: float = 1.0
    """Of those in the traces: how fast."""
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    entropy_schedule: Schedule = "constant"
    max_grad_norm: float | None = 0.5
    actors: int = 2
    """Threads that collect, each in its share of the environments."""
    queue: int = 2
    """Trajectories that may wait for the learner; actors wait while there are as many."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("actors", "queue"):
            check_count("ImpalaConfig", name, getattr(self, name))
        for name in ("learning_rate", "value_coef", "entropy_coef"):
            check_number("ImpalaConfig", name, getattr(self, name), 0.0)
        for name in ("gamma", "gae_lambda"):
            check_number("ImpalaConfig", name, getattr(self, name), 0.0, 1.0)
        for name in ("clip_rho", "clip_c", "max_grad_norm", "adam_epsilon"):
            check_number("ImpalaConfig", name, getattr(self, name), 0.0, above=True)
        for name in ("adam_beta1", "adam_beta2"):
            check_number("ImpalaConfig", name, getattr(self, name), 0.0, 1.0 - 1e-9)
        for name in ("learning_rate_schedule", "entropy_schedule"):
            check_schedule("ImpalaConfig", name, getattr(self, name))

    def options(self, progress: float) -> dict[str, Any]:
        """What the native learner is told at `progress`, the part of the training that is done (0 … 1)."""
        return {
            "epochs": 1,
            "minibatches": 1,
            "ratio": False,
            "clip": math.inf,
            "value_clip": math.inf,
            "normalise_advantages": False,
            "value_coef": self.value_coef,
            "entropy_coef": scheduled(self.entropy_coef, self.entropy_schedule, progress),
            "max_grad_norm": math.inf if self.max_grad_norm is None else self.max_grad_norm,
            "target_kl": math.inf,
            "learning_rate": scheduled(self.learning_rate, self.learning_rate_schedule, progress),
            "beta1": self.adam_beta1,
            "beta2": self.adam_beta2,
            "epsilon": self.adam_epsilon,
        }


class NativeImpala(NativeLearner):
    """IMPALA's learner on threads of its own; arguments as those of `NativePpo`."""

    config: ImpalaConfig

    def __init__(
        self, spec: MlpSpec, config: ImpalaConfig, parameters: Floats, *, seed: int = 0, threads: int = 0
    ) -> None:
        super().__init__(spec, config, parameters, seed=seed, threads=threads)
        self._policy = Policy(spec)

    def update(self, trajectory: Trajectory, progress: float = 0.0) -> Losses:
        """Learn from a trajectory of this policy or an older one; errors as those of `NativeLearner.update`.

        Values within the trajectory are of the policy as it is now; those beyond its end, and of last observations of
        truncated episodes, are of the policy that collected.
        """
        t, config = trajectory, self.config
        parameters = self.parameters
        obs = np.ascontiguousarray(t.obs.reshape(-1, self.spec.obs_size))
        logits, values = self._policy.forward(parameters, obs)
        log_probs = log_probs_of(self.spec, parameters, logits, t.actions.reshape(len(obs), -1))
        shape = t.rewards.shape
        now, values = log_probs.reshape(shape), values.reshape(shape)
        steps = Steps(t.rewards, values, t.terminated, t.truncated, t.final_values, t.last_values)
        targets, advantages = vtrace(
            steps,
            now - t.log_probs,
            config.gamma,
            lam=config.gae_lambda,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
            clip_pg_rho=config.clip_rho,
        )
        return self.learn(t.obs, t.actions, now, values, advantages, targets, progress)


def log_probs_of(spec: MlpSpec, parameters: Floats, logits: Floats, actions: npt.NDArray[Any]) -> Floats:
    """Log-probabilities float32[n] of `actions` [n][K], as they were drawn, under the policy that gave `logits`
    float32[n][n_outputs] (means, for a Gaussian head)."""
    if not isinstance(spec.head, Categorical):
        log_std = views(spec, parameters)["log_std"]
        deviations = (actions - logits) * np.exp(-log_std)
        terms = -0.5 * deviations * deviations - log_std - np.float32(0.5 * math.log(2 * math.pi))
        return np.asarray(terms.sum(axis=1), np.float32)
    total = np.zeros(len(logits), np.float32)
    first = 0
    for column, size in enumerate(spec.head.sizes):
        part = logits[:, first : first + size]
        part = part - part.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(part, actions[:, column : column + 1].astype(np.intp), axis=1)[:, 0]
        total += chosen - np.log(np.exp(part).sum(axis=1))
        first += size
    return total
