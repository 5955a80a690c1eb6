"""Online normalisation: batches of numbers in, running moments out; observations and rewards in, normalised ones out.

Compiled environments are normalised inside `headrace.rl.rollout.Collector` by native code; these classes are the same
arithmetic for everything else: environments in worker processes, evaluation, export.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput

__all__ = ["Moments", "Normaliser", "RewardScaler"]

Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(slots=True)
class Moments:
    """How many samples there were of some numbers, their mean and their sum of squared deviations, float64[size]."""

    count: float
    mean: Doubles
    m2: Doubles

    @classmethod
    def zeros(cls, size: int) -> Moments:
        return cls(0.0, np.zeros(size), np.zeros(size))

    @property
    def variance(self) -> Doubles:
        """Population variance; 1 while there is nothing to go by."""
        return self.m2 / self.count if self.count else np.ones_like(self.m2)

    def update(self, batch: npt.NDArray[Any]) -> None:
        """Take in `batch`, [..., size]. Raises `InvalidInput` for another size and for numbers that are not finite.

        Source: Chan, Golub & LeVeque 1979.
        """
        size = len(self.mean)
        if batch.ndim < 1 or batch.shape[-1] != size:
            raise InvalidInput(f"moments: expected a batch [..., {size}], got {list(batch.shape)}")
        rows = batch.reshape(-1, size).astype(np.float64)
        if not np.isfinite(rows).all():
            raise InvalidInput("moments: the batch holds numbers that are not finite")
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        self.merge(Moments(float(len(rows)), mean, ((rows - mean) ** 2).sum(axis=0)))

    def merge(self, other: Moments) -> None:
        """Take in the samples that `other` stands for."""
        total = self.count + other.count
        if not total:
            return
        delta = other.mean - self.mean
        self.mean = self.mean + delta * (other.count / total)
        self.m2 = self.m2 + other.m2 + delta**2 * (self.count * other.count / total)
        self.count = total

    def copy(self) -> Moments:
        return Moments(self.count, self.mean.copy(), self.m2.copy())


@dataclass(frozen=True, slots=True)
class Normaliser:
    """clip((observation - mean) * scale, -limit, limit) in float32, scale = 1 / sqrt(variance + epsilon)."""

    mean: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    limit: float

    @classmethod
    def of(cls, moments: Moments, limit: float = 10.0, epsilon: float = 1e-8) -> Normaliser:
        """Frozen from `moments`; leaves observations as they are (but for the limit) while these are empty."""
        size = len(moments.mean)
        if not moments.count:
            return cls(np.zeros(size, np.float32), np.ones(size, np.float32), limit)
        scale = 1.0 / np.sqrt(moments.variance + epsilon)
        return cls(moments.mean.astype(np.float32), scale.astype(np.float32), limit)

    def __call__(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Observations [..., size], any float dtype."""
        limit = np.float32(self.limit)
        scaled: npt.NDArray[np.float32] = (observations.astype(np.float32) - self.mean) * self.scale
        return np.clip(scaled, -limit, limit)


class RewardScaler:
    """Divides rewards by the running standard deviation of discounted returns; their mean stays in.

    An environment's return starts at 0 where its episode ended, truncated or terminated. Its state, `returns`
    (float64[n]) and `moments`, belongs into a checkpoint.
    """

    def __init__(self, n_envs: int, gamma: float, *, limit: float = 10.0, epsilon: float = 1e-8) -> None:
        self.gamma, self.limit, self.epsilon = gamma, limit, epsilon
        self.returns: Doubles = np.zeros(n_envs)
        self.moments = Moments.zeros(1)

    def update(self, rewards: npt.NDArray[Any], ended: npt.NDArray[Any]) -> None:
        """Take in one step: rewards [n] as the environments gave them, and where an episode ended with it."""
        if rewards.shape != self.returns.shape or ended.shape != self.returns.shape:
            raise InvalidInput(
                f"reward scaler: expected rewards and ends [{len(self.returns)}], got {list(rewards.shape)} and "
                f"{list(ended.shape)}"
            )
        returns = self.returns * self.gamma + rewards
        self.moments.update(returns[:, None])
        self.returns = np.where(ended.astype(bool), 0.0, returns)

    @property
    def scale(self) -> float:
        return float(1.0 / np.sqrt(self.moments.variance[0] + self.epsilon))

    def __call__(self, rewards: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Scaled rewards of any shape, clipped to the limit."""
        return np.clip(rewards * np.float32(self.scale), -self.limit, self.limit).astype(np.float32)
