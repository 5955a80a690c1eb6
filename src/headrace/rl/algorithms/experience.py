"""Where steps to learn from come from: actions of n environments in, what each of them led to out.

    compiled environments, in this process (`CompiledSource`), or any of Gymnasium's in others (`worker_source.py`)

An environment whose episode ended is at once in its next one; the last observation of the old one is in `final_obs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.errors import InvalidInput, StageFailed
from headrace.rl.envs import CompiledEnv
from headrace.rl.envs.actions import bad_number
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.policy import Floats
from headrace.rl.rollout import BadValues
from headrace.rl.spec import EnvSpec
from headrace.rl.trajectory import EpisodeStats

__all__ = ["BAD_LIMIT", "CompiledSource", "Episodes", "Experience", "Source"]

BAD_LIMIT = 10.0
"""What an infinity becomes where bad values are clipped."""


class Experience(NamedTuple):
    """What one step of all environments gave. The arrays hold until the next step.

    `obs` float32[n, D]: what to act upon next. `final_obs` float32[n, D]: where an episode ended, its last observation;
    the other rows mean nothing. `reward` float32[n]; `terminated`, `truncated` bool[n]. `lost` bool[n]: where a fault
    cut the episode; nothing is to be learnt from that step, and the environment is in a new episode.
    """

    obs: Floats
    final_obs: Floats
    reward: Floats
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    lost: npt.NDArray[np.bool_]


class Source(Protocol):
    """n environments that are stepped together. One call at a time."""

    env_spec: EnvSpec
    n_envs: int

    def reset(self, seed: int) -> Floats:
        """Begin new episodes; their first observations float32[n, D]."""

    def step(self, actions: npt.NDArray[Any], ctx: Context | None = None) -> Experience:
        """Act: `actions` as the space has them, [n] or [n, *shape]. Raises what the environments are at fault for,
        and the error of `ctx` when that ends."""

    def ended(self) -> EpisodeStats:
        """The episodes that ended since it was last asked."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays with which `load` goes on; empty where the environments' state cannot be had."""

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> Floats | None:
        """Go on from there: the observations to act upon; None: that cannot be, and `reset` begins new episodes."""

    def close(self) -> None: ...


class Episodes:
    """Returns and lengths of running episodes, and of those that ended lately."""

    def __init__(self, n: int) -> None:
        self.returns, self.lengths, self.faults = np.zeros(n), np.zeros(n, np.int64), 0
        self._ended: list[tuple[float, int]] = []

    def step(self, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_], lost: npt.NDArray[np.bool_]) -> None:
        self.returns += reward
        self.lengths += 1
        if ended.any() or lost.any():
            chosen = ended & ~lost
            self._ended += zip(self.returns[chosen].tolist(), self.lengths[chosen].tolist(), strict=True)
            self.forget(ended | lost)

    def forget(self, rows: npt.NDArray[np.bool_] | slice) -> None:
        self.returns[rows], self.lengths[rows] = 0.0, 0

    def take(self) -> EpisodeStats:
        """Those that ended since it was last asked."""
        returns, lengths = ([pair[i] for pair in self._ended] for i in (0, 1))
        stats = EpisodeStats(np.array(returns, np.float64), np.array(lengths, np.int64), self.faults)
        self._ended, self.faults = [], 0
        return stats


class CompiledSource:
    """`n_envs` compiled environments, on threads of this process. `bad_values` as for `headrace.rl.rollout.Collector`,
    with infinities taken as +-`BAD_LIMIT`."""

    def __init__(
        self, env: CompiledEnv, n_envs: int, *, threads: int | None = None, bad_values: BadValues = "stop"
    ) -> None:
        self.env_spec, self.n_envs = env.spec, n_envs
        self._batch = BatchEnv(env, n_envs, autoreset=Autoreset.SAME_STEP, threads=threads, check=False)
        self._bad_values: BadValues = bad_values
        self._episodes = Episodes(n_envs)

    def reset(self, seed: int) -> Floats:
        self._episodes.forget(slice(None))
        return self._flat(self._batch.reset(seed))

    def step(self, actions: npt.NDArray[Any], ctx: Context | None = None) -> Experience:
        if ctx is not None:
            ctx.check()
        step = self._batch.step(actions)
        obs, final_obs, reward = self._flat(step.obs), self._flat(self._batch.final_obs), step.reward
        lost = np.zeros(self.n_envs, np.bool_)
        ended = step.terminated | step.truncated
        last = np.where(ended[:, None], final_obs, obs) if ended.any() else obs
        if not (np.isfinite(reward).all() and np.isfinite(obs).all() and np.isfinite(last).all()):
            bad = ~(np.isfinite(reward) & np.isfinite(obs).all(1) & np.isfinite(last).all(1))
            lost = self._mend(bad, last, reward, actions)
        self._episodes.step(reward, ended, lost)
        return Experience(obs, final_obs, reward, step.terminated, step.truncated, lost)

    def _mend(
        self, bad: npt.NDArray[np.bool_], last: Floats, reward: Floats, actions: npt.NDArray[Any]
    ) -> npt.NDArray[np.bool_]:
        """Do as `bad_values` says; returns where the episode is over."""
        batch = self._batch
        if self._bad_values == "stop":
            number = int(np.flatnonzero(bad)[0])
            step = int(self._episodes.lengths[number]) + 1
            what, value = (
                ("reward", reward[number]) if not np.isfinite(reward[number]) else ("observation", last[number])
            )
            given = float(value) if what == "reward" else float(value[~np.isfinite(value)][0])
            raise StageFailed("environments", bad_number(self.env_spec.id, number, step, actions[number], what, given))
        self._episodes.faults += int(bad.sum())
        lost = np.zeros_like(bad)
        if self._bad_values == "drop":
            batch.restart(bad)
            lost = bad
        for array in (reward, batch.obs, batch.final_obs):
            array[:] = np.nan_to_num(array, nan=0.0, posinf=BAD_LIMIT, neginf=-BAD_LIMIT)
        return lost

    def _flat(self, obs: Floats) -> Floats:
        return obs.reshape(self.n_envs, -1)

    def ended(self) -> EpisodeStats:
        return self._episodes.take()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "seed": np.array(self._batch.seed, np.uint64),
            "envs": self._batch.state.copy(),
            "obs": self._flat(self._batch.obs).copy(),
            "returns": self._episodes.returns.copy(),
            "lengths": self._episodes.lengths.copy(),
        }

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> Floats | None:
        batch, own = self._batch, self.state()
        for name, array in own.items():
            got = state.get(name)
            if got is None or got.shape != array.shape or got.dtype != array.dtype:
                told = "nothing" if got is None else f"{got.dtype}{list(got.shape)}"
                raise InvalidInput(f"environments: {name}: expected {array.dtype}{list(array.shape)}, got {told}")
        batch.reset(int(state["seed"]))
        batch.state[:] = state["envs"]
        self._flat(batch.obs)[:] = state["obs"]
        self._episodes.returns[:], self._episodes.lengths[:] = state["returns"], state["lengths"]
        return self._flat(batch.obs)

    def close(self) -> None:
        pass
