"""What comes out of a rollout: the arrays of T steps of N environments, and the episodes that ended in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.pool import TensorPool
from headrace.rl.policy import Floats, MlpSpec
from headrace.rl.returns import Steps

__all__ = ["EpisodeStats", "Trajectory"]


@dataclass(frozen=True, slots=True)
class EpisodeStats:
    """Episodes that ended in a collect: undiscounted `returns` float64[n] of rewards as the environment gave them and
    `lengths` int64[n] in steps; `faults` counts steps with a NaN or an infinity."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    faults: int = 0

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """NaN without episodes, as are the following."""
        return _of(np.mean, self.returns)

    @property
    def min_return(self) -> float:
        return _of(np.min, self.returns)

    @property
    def max_return(self) -> float:
        return _of(np.max, self.returns)

    @property
    def mean_length(self) -> float:
        return _of(np.mean, self.lengths)

    @property
    def min_length(self) -> float:
        return _of(np.min, self.lengths)

    @property
    def max_length(self) -> float:
        return _of(np.max, self.lengths)


def _of(reduce: Any, numbers: npt.NDArray[Any]) -> float:
    return float(reduce(numbers)) if len(numbers) else float("nan")


@dataclass(slots=True)
class Trajectory:
    """T steps of N environments, written in place by every collect into it.

    `obs` float32[T][N][D], normalised as the policy saw them; `actions` int32 or float32[T][N][K] as drawn; `log_probs`
    float32[T][N] of the policy that drew them; `values`, `rewards` (scaled, if so asked) float32[T][N]; `terminated`,
    `truncated` uint8[T][N]; `final_values` float32[T][N], V of the last observation where an episode was truncated,
    else 0; `last_values` float32[N], V of the observation after the last step.

    `version` is that of the weights (0 for a plain array), `first_step` the number of step 0 since the reset.
    """

    obs: Floats
    actions: npt.NDArray[Any]
    log_probs: Floats
    values: Floats
    rewards: Floats
    terminated: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]
    final_values: Floats
    last_values: Floats
    stats: EpisodeStats
    version: int = 0
    first_step: int = 0

    @classmethod
    def empty(cls, spec: MlpSpec, n_envs: int, n_steps: int, pool: TensorPool | None = None) -> Trajectory:
        """Uninitialised arrays that lie in leases of `pool` (default: one of its own)."""
        pool = pool or TensorPool()

        def array(*shape: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
            return pool.empty(shape, dtype)

        cells = (n_steps, n_envs)
        return cls(
            obs=array(*cells, spec.obs_size),
            actions=array(*cells, spec.head.n_actions, dtype=spec.head.dtype),
            log_probs=array(*cells),
            values=array(*cells),
            rewards=array(*cells),
            terminated=array(*cells, dtype=np.uint8),
            truncated=array(*cells, dtype=np.uint8),
            final_values=array(*cells),
            last_values=array(n_envs),
            stats=EpisodeStats(np.empty(0), np.empty(0, np.int64)),
        )

    @property
    def steps(self) -> Steps:
        """The arrays that `headrace.rl.returns` works on."""
        return Steps(self.rewards, self.values, self.terminated, self.truncated, self.final_values, self.last_values)
