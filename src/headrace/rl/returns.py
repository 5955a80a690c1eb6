"""Advantages and returns: the arrays of a trajectory in, what a learner pushes towards out. Pure functions.

All take float32[T][N] `rewards` and `values`, uint8[T][N] `terminated` and `truncated`, float32[T][N] `final_values`
(V of the last observation where truncated) and float32[N] `last_values` (V of the observation after the last step).
What follows a step is worth 0 after termination, final_values after truncation, and the next value otherwise; nothing
flows back over either end. `native=True` runs the same formulas in C++ without the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import InvalidInput

__all__ = ["Steps", "gae", "n_step", "vtrace"]

Floats: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Steps:
    """The arrays of a trajectory that returns depend on. `InvalidInput` names one of a wrong shape or dtype."""

    rewards: Floats
    values: Floats
    terminated: Flags
    truncated: Flags
    final_values: Floats
    last_values: Floats

    def __post_init__(self) -> None:
        if self.rewards.ndim != 2:
            raise InvalidInput(f"rewards: expected float32[T, N], got {self.rewards.dtype}{list(self.rewards.shape)}")
        shape = self.rewards.shape
        for name, dtype in (("rewards", "float32"), ("values", "float32"), ("terminated", "uint8"),
                            ("truncated", "uint8"), ("final_values", "float32")):  # fmt: skip
            _check(name, getattr(self, name), dtype, shape)
        _check("last_values", self.last_values, "float32", shape[1:])

    def following(self) -> tuple[Floats, Floats]:
        """V_{t+1} as each step sees it, and 1 where the next step belongs to the same episode; both [T][N]."""
        ahead = np.concatenate([self.values[1:], self.last_values[None]])
        ahead = np.where(self.truncated != 0, self.final_values, ahead)
        ahead = np.where(self.terminated != 0, np.float32(0), ahead)
        chain = ((self.terminated | self.truncated) == 0).astype(np.float32)
        return ahead, chain

    def arrays(self) -> tuple[Floats, Floats, Flags, Flags, Floats, Floats]:
        return self.rewards, self.values, self.terminated, self.truncated, self.final_values, self.last_values


def gae(steps: Steps, gamma: float, lam: float, *, native: bool = True) -> tuple[Floats, Floats]:
    """Advantages and returns (advantages + values), float32[T][N].

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}. Source: Schulman et al. 2016.
    """
    advantages = np.empty_like(steps.rewards)
    if native:
        returns = np.empty_like(steps.rewards)
        _native.gae(*steps.arrays(), gamma, lam, advantages, returns)
        return advantages, returns
    ahead, chain = steps.following()
    deltas = steps.rewards + np.float32(gamma) * ahead - steps.values
    decay = np.float32(gamma) * np.float32(lam) * chain
    running = np.zeros_like(steps.last_values)
    for t in reversed(range(len(deltas))):
        running = deltas[t] + decay[t] * running
        advantages[t] = running
    return advantages, advantages + steps.values


def vtrace(
    steps: Steps,
    log_rhos: Floats,
    gamma: float,
    *,
    lam: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
    native: bool = True,
) -> tuple[Floats, Floats]:
    """Value targets and policy-gradient advantages float32[T][N] from the data of an older policy.

    `log_rhos` [T][N] = log pi(a|x) - log mu(a|x). rho is clipped at `clip_rho` in the temporal differences (which value
    is learnt), at `clip_c` in the traces (how fast), and at `clip_pg_rho` in the advantages. Source: Espeholt et al.
    2018.
    """
    _check("log_rhos", log_rhos, "float32", steps.rewards.shape)
    targets, advantages = np.empty_like(steps.rewards), np.empty_like(steps.rewards)
    if native:
        _native.vtrace(*steps.arrays(), log_rhos, gamma, lam, clip_rho, clip_c, clip_pg_rho, targets, advantages)
        return targets, advantages
    discount, mix = np.float32(gamma), np.float32(lam)
    rhos = np.exp(log_rhos)
    ahead, chain = steps.following()
    deltas = np.minimum(np.float32(clip_rho), rhos) * (steps.rewards + discount * ahead - steps.values)
    traces = discount * chain * (mix * np.minimum(np.float32(clip_c), rhos))
    error = np.zeros_like(steps.last_values)
    for t in reversed(range(len(deltas))):
        error = deltas[t] + traces[t] * error
        targets[t] = steps.values[t] + error
    targets_ahead = np.concatenate([targets[1:], steps.last_values[None]])
    bootstrap = np.where(chain != 0, mix * targets_ahead + (1 - mix) * ahead, ahead)
    advantages[...] = np.minimum(np.float32(clip_pg_rho), rhos) * (steps.rewards + discount * bootstrap - steps.values)
    return targets, advantages


def n_step(steps: Steps, gamma: float, n: int, *, native: bool = True) -> Floats:
    """r_t + gamma r_{t+1} + … (`n` rewards) + gamma^n V_{t+n}, float32[T][N]; fewer where an episode or the trajectory
    ends first. Source: Sutton & Barto 2018, equation 7.1.
    """
    if n < 1:
        raise InvalidInput(f"n_step: expected n of at least 1, got {n}")
    if native:
        returns = np.empty_like(steps.rewards)
        _native.n_step(*steps.arrays(), gamma, n, returns)
        return returns
    ahead, chain = steps.following()
    discount = np.float32(gamma)
    returns = steps.rewards + discount * ahead  # with one reward; then with one more, where there is one
    for _ in range(1, n):
        longer = steps.rewards[:-1] + discount * returns[1:]
        returns = np.concatenate([np.where(chain[:-1] != 0, longer, returns[:-1]), returns[-1:]])
    return returns


def _check(name: str, array: npt.NDArray[Any], dtype: str, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise InvalidInput(f"{name}: expected contiguous {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}")
