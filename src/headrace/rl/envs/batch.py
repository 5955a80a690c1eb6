"""Many environments stepped at once from Python: actions in, observations, rewards and flags out, as NumPy arrays.

The arrays are made once and written by every step; the environments are split over threads, which changes no result.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace._native import EnvTeam
from headrace.core.machine import machine
from headrace.errors import InvalidInput
from headrace.rl.envs.actions import check_actions, check_rewards
from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.compiler import CompiledEnv
from headrace.rl.spec import EnvSpec

__all__ = ["Autoreset", "BatchEnv", "Step"]

_ENVS_PER_THREAD = 1024  # fewer are stepped sooner by one thread than another one is woken


class Autoreset(enum.IntEnum):
    """What a step does with an environment whose episode has ended."""

    DISABLED = 0
    """Nothing, with reward 0, until it is reset."""
    SAME_STEP = 1
    """The observation is the first of the next episode; the last one is in `BatchEnv.final_obs`."""
    NEXT_STEP = 2
    """The observation is the last one; the next step resets, ignores the action and gives reward 0."""


class Step(NamedTuple):
    """What one step gave. The arrays belong to the `BatchEnv` and are overwritten by its next step."""

    obs: NDArray[np.float32]  # [n, *observation.shape]
    reward: NDArray[np.float32]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]


class BatchEnv:
    """`n` environments side by side. One call at a time.

    Args:
        env: What to run.
        n: How many.
        autoreset: See `Autoreset`.
        seed: Everything random follows from it, from the number of the environment, its episode and step.
        threads: By default as many as there are usable CPUs, but one for each 1024 environments at most.
        check: Whether to refuse bad actions and rewards that are no number; costs a few percent.

    Raises `InvalidInput` for arguments out of range.
    """

    def __init__(
        self,
        env: CompiledEnv,
        n: int,
        *,
        autoreset: Autoreset = Autoreset.SAME_STEP,
        seed: int = 0,
        threads: int | None = None,
        check: bool = True,
    ) -> None:
        if n < 1:
            raise InvalidInput(f"number of environments: expected at least 1, got {n}")
        if threads is not None and threads < 1:
            raise InvalidInput(f"threads: expected at least 1, got {threads}")
        self.env, self.n, self.check = env, n, check
        self.autoreset = Autoreset(autoreset)
        self.seed = seed_of(seed)
        self.state = env.new_state(n)
        shape = env.spec.observation.shape
        self._obs, self._final_obs = (np.zeros((n, env.spec.obs_size), np.float32) for _ in range(2))
        self._reward = np.zeros(n, np.float32)
        self._terminated, self._truncated = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
        self.final_obs = self._final_obs.reshape(n, *shape)
        """[n, *observation.shape]: with SAME_STEP the last observation of each episode that ended in the last step; the
        rows of other environments mean nothing."""
        self._step = Step(
            self._obs.reshape(n, *shape),
            self._reward,
            self._terminated.view(np.bool_),
            self._truncated.view(np.bool_),
        )
        if threads is None:
            threads = max(1, min(machine().usable_cpus, n // _ENVS_PER_THREAD))
        self._team = EnvTeam(env.reset_address, env.restart_address, env.step_address, n, threads)
        self.begun = False
        """Whether it has been reset."""

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    @property
    def threads(self) -> int:
        return self._team.threads

    @property
    def obs(self) -> NDArray[np.float32]:
        """The observations of the last reset or step, [n, *observation.shape]."""
        return self._step.obs

    def fields(self) -> Mapping[str, NDArray[Any]]:
        """The state of all environments by name of field, [n] or [n, *shape]; what is written is seen by the next step.
        The loop's own are `_episode`, `_steps` and `_ended`."""
        return self.env.views(self.state, self.n)

    def draw(self, number: int = 0) -> NDArray[np.uint8]:
        """A picture of one environment, uint8[height, width, 3].

        Raises `InvalidInput` for environments that cannot be drawn, and `MissingExtra` without pillow.
        """
        draw = getattr(self.env.definition.env, "draw", None)
        if draw is None:
            raise InvalidInput(f"{self.spec.id} cannot be drawn: it has no draw(state, params)")
        self._require_reset("draw")
        definition = self.env.definition
        canvas: Canvas = draw(definition.state_at(self.fields(), number), definition.params)
        return canvas.array()

    def reset(self, seed: int | None = None) -> NDArray[np.float32]:
        """Begin episode 0 of all environments, of `seed` if given; their observations [n, *observation.shape]."""
        if seed is not None:
            self.seed = seed_of(seed)
        self._team.reset(self.state, self.seed, self._obs)
        self.begun = True
        return self._step.obs

    def restart(self, mask: ArrayLike) -> NDArray[np.float32]:
        """Begin the next episode of the environments where `mask` (bool[n]) is true; the observations of all.

        Raises `InvalidInput` for another kind of mask, and before the first `reset`.
        """
        self._require_reset("restart")
        chosen = np.ascontiguousarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (self.n,):
            raise InvalidInput(f"reset mask: expected bool[{self.n}], got {chosen.dtype}{list(chosen.shape)}")
        self._team.restart(self.state, self.seed, chosen.view(np.uint8), self._obs)
        return self._step.obs

    def step(self, actions: ArrayLike) -> Step:
        """Take one step in every environment.

        `actions`: whole numbers [n] for `Discrete`, [n, k] for `MultiDiscrete`; floats [n, *shape] for `Box`. Raises
        `InvalidInput` that names the environment whose action is bad, or whose reward is no number.
        """
        self._require_reset("step")
        given = check_actions(self.spec, actions, self.n, values=self.check)
        self._team.step(
            self.state,
            self.seed,
            given,
            self._obs,
            self._final_obs,
            self._reward,
            self._terminated,
            self._truncated,
            self.autoreset,
        )
        if self.check:
            check_rewards(self.spec, self._reward, given)
        return self._step

    def _require_reset(self, call: str) -> None:
        if not self.begun:
            raise InvalidInput(f"{self.spec.id}: reset must be called before {call}")


def seed_of(seed: Any) -> int:
    """A seed as 64 bits. Raises `InvalidInput` for what is no whole number in 0 … 2**64 - 1."""
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise InvalidInput(f"seed: expected a whole number in 0 … 2**64 - 1, got {seed!r}")
    return int(seed)
