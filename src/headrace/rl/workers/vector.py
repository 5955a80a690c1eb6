"""Environments in worker processes as one Gymnasium vector environment: its calls in, its conventions out.

    env = ProcessVectorEnv.make("LunarLander-v3", 16)                  # or ProcessVectorEnv([factory, factory, …])
    obs, infos = env.reset(seed=1)
    obs, rewards, terminated, truncated, infos = env.step(env.action_space.sample())

    env.async_reset(seed=1)                                            # or whichever are ready first:
    ready = env.recv(8)
    env.send(policy(ready.obs), ready.ids)

Importing this module imports gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.workers.actions import ActionWriter
from headrace.rl.workers.drivers import Entry
from headrace.rl.workers.faults import Fault
from headrace.rl.workers.pool import WorkerPool
from headrace.rl.workers.settings import PoolSettings
from headrace.rl.workers.tally import Tally, WorkerMetrics

__all__ = ["ParallelVectorEnv", "ProcessVectorEnv", "Ready"]


class Ready(NamedTuple):
    """Environments that are done with a step or a reset (then with reward 0 and no flags). Arrays are copies.

    `ids` int64[m]; `obs`, of the batched space, `rewards` float64, `terminated` and `truncated` bool: m rows, or with
    agents m * agents. `infos` as those of a step: over all environments, with a mask for each key.
    """

    ids: NDArray[np.intp]
    obs: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: dict[str, Any]


class ProcessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`len(env_fns)` Gymnasium environments in `workers` processes (default: one per usable CPU).

    Args:
        env_fns: What makes each environment; lambdas and functions of a script will do.
        autoreset_mode: Gymnasium's `AutoresetMode`, or its value; in `metadata` too.
        copy: Whether every step returns arrays of its own; without, they are views of shared memory, which hold until
            the next step.
        check_actions: Whether to look for numbers outside the action space; costs some microseconds.
        metrics: Where faults are counted, beside `tally`.
        settings: See `PoolSettings`: `step_timeout_s`, `rss_limit_bytes`, `bad_values`, `on_fault`, …

    A fault of an environment, or of its process, ends its episode: it is truncated, `infos["fault"]` says why, and a
    new one follows. Raises what `WorkerPool` raises.
    """

    metadata: dict[str, Any]
    _parallel: ClassVar[bool] = False

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *,
        workers: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        check_actions: bool = True,
        metrics: WorkerMetrics | None = None,
        **settings: Any,
    ) -> None:
        self.closed = True  # until there is something to close
        try:
            mode = AutoresetMode(autoreset_mode)
        except ValueError as error:
            raise InvalidInput(f"autoreset_mode: {error}") from error
        if not env_fns:
            raise InvalidInput("env_fns: expected at least one environment")
        self.pool = pool = WorkerPool(
            env_fns,
            workers=workers,
            parallel=self._parallel,
            autoreset=mode.value,
            settings=PoolSettings.of(settings),
            metrics=metrics,
        )
        self.closed = False
        self.copy, self._same_step = copy, mode is AutoresetMode.SAME_STEP
        self.num_envs = pool.n_envs * pool.agents
        self.metadata = {**pool.spaces.metadata, "autoreset_mode": mode}
        self.render_mode = pool.spaces.render_mode
        self.single_observation_space, self.single_action_space = pool.spaces.observation, pool.spaces.action
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._actions = ActionWriter(pool.board.actions, self._named, values=check_actions)

    @classmethod
    def make(
        cls, env: str | Callable[..., Any], num_envs: int, *, kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Self:
        """`num_envs` times `env(**kwargs)`, or `gymnasium.make(env, **kwargs)`; `options` as for the class."""
        make = partial(gymnasium.make, env) if isinstance(env, str) else env
        return cls([partial(make, **(kwargs or {}))] * num_envs, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tally(self) -> Tally:
        """What went wrong so far."""
        return self.pool.tally

    # -- all together --------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all, environment i with `seed` + i (or `seed[i]`); `options["reset_mask"]` (bool[n]) chooses some."""
        self.async_reset(seed=seed, options=options)
        self.pool.recv(self.pool.busy)
        return self._observed(), self._infos()

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of all. Raises `InvalidInput` for bad actions, and what `recv` raises."""
        pool, board = self.pool, self.pool.board
        if pool.busy:
            raise InvalidInput(f"step: {pool.busy} environments are busy; receive them, or reset")
        self._actions.write(actions)
        pool.send()
        pool.recv(pool.n_envs)
        columns = (board.rewards, board.terminated, board.truncated)
        rewards, terminated, truncated = (column.copy() for column in columns) if self.copy else columns
        return self._observed(), rewards, terminated, truncated, self._infos()

    def _observed(self) -> Any:
        obs = self.pool.board.obs
        return obs.take(slice(None)) if self.copy else obs.tree

    # -- whichever are ready -------------------------------------------------------------------------------------------

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin to reset; `recv` gives the first observations."""
        n = self.pool.n_envs
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds: list[int | None] = [None if seed is None else int(seed) + i for i in range(n)]
        else:
            seeds = list(seed)
        if len(seeds) != n:
            raise InvalidInput(f"seed: expected {n}, one for each environment, got {len(seeds)}")
        if mask is None:
            chosen = list(range(n))
        else:
            given = np.asarray(mask)
            if given.dtype != np.bool_ or given.shape != (n,) or not given.any():
                told = f"{given.dtype}{list(given.shape)}"
                raise InvalidInput(f"reset_mask: expected bool[{n}], not all False, got {told}")
            chosen = np.flatnonzero(given).tolist()
        self.pool.reset({env: seeds[env] for env in chosen}, options or None)

    def send(self, actions: Any, ids: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> None:
        """Begin a step of the environments `ids` (default: all) with one row of `actions` each (or one per agent).

        Raises `InvalidInput` for bad actions and for environments that are busy.
        """
        if ids is None:
            if self.pool.busy:
                raise InvalidInput(f"send: {self.pool.busy} environments are busy; name those that are not")
            self._actions.write(actions)
            self.pool.send()
            return
        chosen = np.asarray(ids)
        self.pool.check_free(chosen)
        self._actions.write(actions, self.rows(chosen))
        self.pool.send(chosen.tolist())

    def recv(self, min_ready: int = 1, timeout_s: float | None = None) -> Ready:
        """Wait for at least `min_ready` environments; those that are done in the same moment come too.

        Raises `DeadlineExceeded` after `timeout_s` (nothing is lost: ask again), `StageFailed` for a fault that is not
        to be mended (`on_fault`, `bad_values`), `Unavailable` for a worker that fails too often.
        """
        ids = np.asarray(self.pool.recv(min_ready, timeout_s), np.intp)
        rows, board = self.rows(ids), self.pool.board
        return Ready(
            ids, board.obs.take(rows), board.rewards[rows], board.terminated[rows], board.truncated[rows],
            self._infos(ids),
        )  # fmt: skip

    def rows(self, ids: NDArray[Any]) -> NDArray[np.intp]:
        """The rows of environments: themselves, or those of their agents, together."""
        agents = self.pool.agents
        return ids if agents == 1 else (ids[:, np.newaxis] * agents + np.arange(agents)).reshape(-1)

    # -- infos ---------------------------------------------------------------------------------------------------------

    def _infos(self, ids: NDArray[np.intp] | None = None) -> dict[str, Any]:
        entries, faults = self.pool.take_infos()
        infos: dict[str, Any] = {}
        for entry in entries.values():
            self._add_entry(infos, entry)
        if self._same_step:
            self._add_final(infos, entries, ids)
        for fault in faults.values():
            self._add_fault(infos, fault)
        return infos

    def _add_entry(self, infos: dict[str, Any], entry: Entry) -> None:
        self._add_info(infos, dict(entry.info), entry.env)

    def _add_fault(self, infos: dict[str, Any], fault: Fault) -> None:
        for row in self.rows(np.array([fault.env])).tolist():
            self._add_info(infos, {"fault": str(fault)}, row)

    def _add_final(self, infos: dict[str, Any], entries: dict[int, Entry], ids: NDArray[np.intp] | None) -> None:
        """`final_obs` and `final_info` of the rows whose episodes ended, as Gymnasium gives them."""
        board, agents = self.pool.board, self.pool.agents
        ended = board.terminated | board.truncated
        if ids is not None:
            mask = np.zeros_like(ended)
            mask[self.rows(ids)] = True
            ended &= mask
        if not ended.any():
            return
        for row in np.flatnonzero(ended).tolist():
            entry = entries.get(row // agents)
            info = dict(self._final_info(entry, row % agents)) if entry is not None else {}
            self._add_info(infos, {"final_obs": board.final.element(row), "final_info": info}, row)

    def _final_info(self, entry: Entry, agent: int) -> Any:
        return entry.final_info

    def _named(self, row: int) -> str:
        return f"environment {row}"

    # -- single environments -------------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or get an attribute."""
        return tuple(self.pool.call("call", name, [(args, kwargs)] * self.pool.n_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment; a list or tuple holds one value for each."""
        n = self.pool.n_envs
        each = list(values) if isinstance(values, (list, tuple)) else [values] * n
        if len(each) != n:
            raise InvalidInput(f"set_attr: expected {n} values, one for each environment, got {len(each)}")
        self.pool.call("set", name, [((value,), {}) for value in each])

    def render(self) -> tuple[Any, ...] | None:
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the processes; `timeout` (seconds) replaces `close_timeout_s`, `terminate` waits for nothing."""
        self.pool.close(0.0 if terminate else timeout)


class ParallelVectorEnv(ProcessVectorEnv):
    """PettingZoo parallel environments in worker processes: each agent is a row, `num_envs` = environments * agents.

    Row e * agents + a is agent `agents[a]` of environment e; `infos["alive"]` (bool[num_envs]) tells which rows will
    act in the next step. `ids` in `send` and `recv` are environments. An episode is over when no agent is left, or with
    a fault.
    """

    _parallel = True

    @property
    def agents(self) -> tuple[str, ...]:
        return self.pool.spaces.agents

    def _infos(self, ids: NDArray[np.intp] | None = None) -> dict[str, Any]:
        return {**super()._infos(ids), "alive": self.pool.board.alive.copy()}

    def _add_entry(self, infos: dict[str, Any], entry: Entry) -> None:
        for place, agent in enumerate(self.agents):
            if agent in entry.info:
                self._add_info(infos, entry.info[agent], entry.env * len(self.agents) + place)

    def _final_info(self, entry: Entry, agent: int) -> Any:
        return entry.final_info.get(self.agents[agent], {})

    def _named(self, row: int) -> str:
        place = row % self.pool.agents
        return f"agent {self.agents[place]!r} of environment {row // self.pool.agents}"
