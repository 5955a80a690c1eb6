"""Compiled environments as Gymnasium's: a vector of them, or one; in go Gymnasium's calls, out come its conventions.

Importing this module imports gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.envs.definition import Env
from headrace.rl.envs.registry import make_env
from headrace.rl.spec import to_gymnasium

__all__ = ["SingleEnv", "VectorEnv"]

_DRAWN: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
_MODES = {
    AutoresetMode.NEXT_STEP: Autoreset.NEXT_STEP,
    AutoresetMode.SAME_STEP: Autoreset.SAME_STEP,
    AutoresetMode.DISABLED: Autoreset.DISABLED,
}


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` environments as one `gymnasium.vector.VectorEnv`.

    Args:
        env: What `headrace.rl.envs.make_env` takes.
        num_envs: How many.
        max_episode_steps: In place of the environment's own.
        autoreset_mode: Gymnasium's `AutoresetMode`, or its value; in `metadata` too.
        params: Changes to the environment's parameters.
        threads: See `BatchEnv`.
        copy: Whether every step returns arrays of its own; without, they are those of the next step too.
        render_mode: None, or "rgb_array" for environments that can be drawn.
    """

    metadata: dict[str, Any] = {**_DRAWN, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  Gymnasium's

    def __init__(
        self,
        env: str | type[Env],
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        params: Mapping[str, Any] | None = None,
        threads: int | None = None,
        copy: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = _render_mode(render_mode)
        try:
            mode = AutoresetMode(autoreset_mode)
        except ValueError as error:
            raise InvalidInput(f"autoreset_mode: {error}") from error
        compiled = make_env(env, params, max_steps=max_episode_steps)
        self.batch = BatchEnv(compiled, num_envs, autoreset=_MODES[mode], threads=threads)
        self.num_envs, self.copy = num_envs, copy
        self.metadata = {**type(self).metadata, "autoreset_mode": mode}
        self.single_observation_space = to_gymnasium(compiled.spec.observation)
        self.single_action_space = to_gymnasium(compiled.spec.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended = self.batch.fields()["_ended"]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """With `seed`, episode 0 of every environment; without, the next one. `options["reset_mask"]` (bool[num_envs])
        chooses environments, whose next episode begins; the others go on.

        Raises `InvalidInput` for a list of seeds (one seed keys all environments) and for unknown options.
        """
        mask = _reset_mask(options)
        if seed is not None or not self.batch.begun:
            if mask is not None:
                raise InvalidInput("reset: a reset_mask goes without a seed, and not with the first reset")
            super().reset(seed=None if seed is None else _as_seed(seed))
            self.batch.reset(_key(self.np_random, seed))
        else:
            self.batch.restart(np.ones(self.num_envs, np.bool_) if mask is None else mask)
        return self._own(self.batch.obs), {}

    def step(
        self, actions: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every environment. With SAME_STEP, `info["final_obs"]` and `info["final_info"]` hold what an
        episode ended with where `info["_final_obs"]` is true.

        Raises `InvalidInput` for bad actions, and with DISABLED when an environment that ended was not reset.
        """
        if self.batch.autoreset is Autoreset.DISABLED and self._ended.any():
            number = int(np.flatnonzero(self._ended)[0])
            raise InvalidInput(f"environment {number} has ended: reset it with options={{'reset_mask': …}} first")
        obs, reward, terminated, truncated = self.batch.step(actions)
        info = self._final(terminated | truncated) if self.batch.autoreset is Autoreset.SAME_STEP else {}
        return self._own(obs), self._own(reward), self._own(terminated), self._own(truncated), info

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """With "rgb_array" a picture of every environment, uint8[height, width, 3] each."""
        if self.render_mode is None:
            return None
        return tuple(self.batch.draw(number) for number in range(self.num_envs))

    def _own(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.copy() if self.copy else array

    def _final(self, ended: NDArray[np.bool_]) -> dict[str, Any]:
        if not ended.any():
            return {}
        rows = np.full(self.num_envs, None, object)
        numbers = np.flatnonzero(ended)
        for number, last in zip(numbers.tolist(), self.batch.final_obs[numbers], strict=True):
            rows[number] = last
        return {"final_obs": rows, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}


class SingleEnv(gymnasium.Env[Any, Any]):
    """One environment as a `gymnasium.Env`. It never truncates: `gymnasium.make` wraps it in a `TimeLimit`."""

    metadata: dict[str, Any] = dict(_DRAWN)  # noqa: RUF012  Gymnasium's

    def __init__(
        self, env: str | type[Env], *, params: Mapping[str, Any] | None = None, render_mode: str | None = None
    ) -> None:
        self.render_mode = _render_mode(render_mode)
        compiled = make_env(env, params)
        self.batch = BatchEnv(compiled, 1, autoreset=Autoreset.DISABLED, threads=1)
        self.observation_space = to_gymnasium(compiled.spec.observation)
        self.action_space = to_gymnasium(compiled.spec.action)
        self._ended = self.batch.fields()["_ended"]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """With `seed`, episode 0 of that seed; without, the next one. There are no options."""
        super().reset(seed=None if seed is None else _as_seed(seed))
        if options:
            raise InvalidInput(f"reset: unknown options {', '.join(options)}")
        if seed is not None or not self.batch.begun:
            self.batch.reset(_key(self.np_random, seed))
        else:
            self.batch.restart(np.ones(1, np.bool_))
        return self.batch.obs[0].copy(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Raises `InvalidInput` for an action outside the space."""
        obs, reward, terminated, _ = self.batch.step(np.asarray(action)[np.newaxis])
        if not terminated[0]:
            self._ended[0] = 0  # past its limit of steps it goes on: that limit is for `TimeLimit` to see to
        return obs[0].copy(), float(reward[0]), bool(terminated[0]), False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """With "rgb_array" a picture, uint8[height, width, 3]."""
        return self.batch.draw() if self.render_mode else None


def _render_mode(mode: str | None) -> str | None:
    if mode not in (None, "rgb_array"):
        raise InvalidInput(f"render_mode: expected None or 'rgb_array', got {mode!r}")
    return mode


def _as_seed(seed: Any) -> int:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise InvalidInput(f"seed: expected one whole number of at least 0 (it keys all environments), got {seed!r}")
    return int(seed)


def _key(generator: np.random.Generator, seed: Any) -> int:
    """The seed of the environments: what was asked for, or one that `generator` draws."""
    return int(generator.integers(2**63)) if seed is None else _as_seed(seed) % 2**64


def _reset_mask(options: dict[str, Any] | None) -> Any:
    unknown = sorted(set(options or {}) - {"reset_mask"})
    if unknown:
        raise InvalidInput(f"reset: unknown options {', '.join(unknown)}; there is reset_mask")
    return (options or {}).get("reset_mask")
