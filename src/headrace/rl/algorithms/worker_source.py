"""Steps to learn from out of worker processes: any Gymnasium environment as a `Source`.

Importing this module imports gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.core.machine import machine
from headrace.errors import DeadlineExceeded, InvalidInput
from headrace.rl.algorithms.experience import Episodes, Experience
from headrace.rl.config import TrainConfig
from headrace.rl.policy import Floats
from headrace.rl.trajectory import EpisodeStats
from headrace.rl.workers.flatten import env_spec, flat_rows
from headrace.rl.workers.vector import ProcessVectorEnv

__all__ = ["WorkerSource", "make_processes"]

_SLICE_S = 0.1  # how soon a cancelled context is noticed


def make_processes(config: TrainConfig, factory: Callable[[], Any], n: int) -> ProcessVectorEnv:
    """`n` environments that begin a new episode at once, over the workers of a config."""
    return ProcessVectorEnv(
        [factory] * n,
        workers=min(n, config.workers or machine().usable_cpus),
        autoreset_mode="SameStep",
        infos=False,
        bad_values=config.bad_values,
    )


class WorkerSource:
    """The environments of a `ProcessVectorEnv` with `autoreset_mode="SameStep"`, which it closes. What is wrong with
    them is dealt with as the workers' settings say; their own state stays in their processes."""

    def __init__(self, env: ProcessVectorEnv) -> None:
        if env.pool.autoreset != "SameStep" or env.pool.agents != 1:
            raise InvalidInput(
                f"worker source: expected environments of one agent with autoreset_mode 'SameStep', got "
                f"{env.pool.agents} and {env.pool.autoreset!r}"
            )
        self.env, self.env_spec, self.n_envs = env, env_spec(env.pool.spaces), env.num_envs
        self._episodes = Episodes(self.n_envs)
        self._bad = 0

    def reset(self, seed: int) -> Floats:
        self._episodes.forget(slice(None))
        self.env.reset(seed=(seed ^ seed >> 32) & 0x7FFFFFFF)  # some environments take no more
        return flat_rows(self.env.pool.board.obs, slice(None))

    def step(self, actions: npt.NDArray[Any], ctx: Context | None = None) -> Experience:
        pool, board = self.env.pool, self.env.pool.board
        space: Any = self.env.single_action_space
        self.env.send(actions.reshape(self.n_envs, *space.shape).astype(space.dtype))
        while pool.busy:
            if ctx is None:
                pool.recv(pool.busy)
                break
            ctx.check()
            try:
                pool.recv(pool.busy, _SLICE_S)
            except DeadlineExceeded:
                continue
        lost = np.zeros(self.n_envs, np.bool_)
        _, faults = pool.take_infos()
        lost[list(faults)] = True
        reward = board.rewards.astype(np.float32)
        terminated, truncated = board.terminated.copy(), board.truncated.copy()
        self._episodes.step(board.rewards, terminated | truncated, lost)
        obs, final_obs = (flat_rows(rows, slice(None)) for rows in (board.obs, board.final))
        return Experience(obs, final_obs, reward, terminated, truncated, lost)

    def ended(self) -> EpisodeStats:
        bad = self.env.tally.faults["bad_value"]
        self._episodes.faults, self._bad = bad - self._bad, bad
        return self._episodes.take()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> Floats | None:
        return None

    def close(self) -> None:
        self.env.close()
