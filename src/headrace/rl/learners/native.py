"""The learner that runs natively: collected steps in, mean losses out, its parameters better by all epochs of a call.

Forward, backward and Adam run fused in C++ without the GIL on threads of the learner's own. How many there are changes
no bit of the result; neither does saving the state and going on from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import InvalidInput
from headrace.rl.policy import Floats, MlpSpec, n_parameters, native_arguments
from headrace.rl.returns import gae

if TYPE_CHECKING:
    from headrace.rl.rollout import Trajectory

__all__ = ["LearnerState", "Losses", "NativeLearner", "Settings"]

LearnerState: TypeAlias = dict[str, npt.NDArray[Any] | int]
"""`parameters`, `first_moments`, `second_moments` (float32[n_parameters]), `steps`, `updates`, `seed`."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Means over the minibatches of an update, `grad_norm` before clipping.

    `explained_variance` is 1 - var(R - V) / var(R) of the trajectory, NaN if all returns are the same. `steps` counts
    those of Adam. `stopped`: the divergence from the old policy went beyond `target_kl`, which ended the update.
    """

    policy: float
    value: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float
    steps: int
    stopped: bool


class Settings(Protocol):
    """What a config tells the learner."""

    @property
    def gamma(self) -> float: ...
    @property
    def gae_lambda(self) -> float: ...
    def options(self, progress: float) -> dict[str, Any]: ...


class NativeLearner:
    """What `NativePpo` and `NativeA2c` share. One call at a time; calls from several threads wait for each other."""

    def __init__(self, spec: MlpSpec, config: Settings, parameters: Floats, *, seed: int = 0, threads: int = 0) -> None:
        self.spec, self.config, self.seed = spec, config, seed
        self._size = n_parameters(spec)
        self._native = _native.Learner(*native_arguments(spec), seed, threads or len(os.sched_getaffinity(0)))
        nothing = np.zeros(self._size, np.float32)
        self._native.load(self._flat("parameters", parameters), nothing, nothing, 0, 0)

    @property
    def parameters(self) -> Floats:
        """A copy, float32[n_parameters(spec)]; what a collector is to be given after an update."""
        flat = self.state()["parameters"]
        assert isinstance(flat, np.ndarray)
        return flat

    def update(self, trajectory: Trajectory, progress: float = 0.0) -> Losses:
        """Learn from a trajectory, its advantages by GAE. `progress`: the part of the training that is done (0 … 1),
        which schedules go by.

        Raises `InvalidInput` for shapes and dtypes that do not fit the spec, for a number that is not finite or an
        action that does not exist, and for a gradient that overflows; the parameters are then as they were.
        """
        t = trajectory
        advantages, returns = gae(t.steps, self.config.gamma, self.config.gae_lambda)
        return self.learn(t.obs, t.actions, t.log_probs, t.values, advantages, returns, progress)

    def learn(
        self,
        obs: Floats,
        actions: npt.NDArray[Any],
        log_probs: Floats,
        values: Floats,
        advantages: Floats,
        returns: Floats,
        progress: float = 0.0,
    ) -> Losses:
        """Learn from steps [...]: obs float32[..., D], actions [..., K] (int32, or float32 for a Gaussian head), the
        rest float32[...]; errors as those of `update`."""
        steps, head, floats = obs.shape[:-1], self.spec.head, np.dtype(np.float32)
        columns = {"log_probs": log_probs, "values": values, "advantages": advantages, "returns": returns}
        losses = self._native.update(
            _checked("obs", obs, (*steps, self.spec.obs_size), floats).reshape(-1, self.spec.obs_size),
            _checked("actions", actions, (*steps, head.n_actions), head.dtype).reshape(-1, head.n_actions),
            *(_checked(name, column, steps, floats).reshape(-1) for name, column in columns.items()),
            **self.config.options(progress),
        )
        return Losses(**losses)

    def state(self) -> LearnerState:
        """All that `load` needs to go on bit by bit: parameters, moments of Adam, counters; copies."""
        parts = {name: np.empty(self._size, np.float32) for name in _PARTS}
        steps, updates = self._native.save(*parts.values())
        return {**parts, "steps": steps, "updates": updates, "seed": self.seed}

    def load(self, state: Mapping[str, npt.NDArray[Any] | int]) -> None:
        """Go on from a `state()` of the same spec and seed. Raises `InvalidInput`, with nothing changed, for one that
        lacks a part, does not fit, or holds a number that is not finite."""
        missing = {*_PARTS, "steps", "updates", "seed"} - set(state)
        if missing:
            raise InvalidInput(f"learner state: lacks {', '.join(sorted(missing))}")
        counters = {name: int(state[name]) for name in ("steps", "updates", "seed")}
        if min(counters.values()) < 0 or counters["seed"] != self.seed:
            raise InvalidInput(f"learner state: expected counters of at least 0 and seed {self.seed}, got {counters}")
        parameters, first, second = (self._flat(name, np.asarray(state[name])) for name in _PARTS)
        self._native.load(parameters, first, second, counters["steps"], counters["updates"])

    def _flat(self, name: str, array: npt.NDArray[Any]) -> Floats:
        if array.dtype != np.float32 or array.shape != (self._size,):
            raise InvalidInput(f"{name}: expected float32[{self._size}], got {array.dtype}{list(array.shape)}")
        return np.require(array, requirements=["C", "W"])


_PARTS = ("parameters", "first_moments", "second_moments")


def _checked(name: str, array: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array, contiguous, after a look at its shape and dtype."""
    if array.dtype != dtype or array.shape != shape:
        raise InvalidInput(f"{name}: expected {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}")
    return np.ascontiguousarray(array)
