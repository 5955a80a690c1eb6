"""Environments in worker processes: which to step or reset goes in, those that are done come out, in any order.

Arrays do not pass through here: actions are written to `board.actions` before `send`, results are in the rows of the
board after `recv`. Faulty environments and processes are replaced on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.core.extras import require
from headrace.core.machine import machine
from headrace.errors import DeadlineExceeded, HeadraceError, InvalidInput, StageFailed
from headrace.rl.workers.board import BoardSpec
from headrace.rl.workers.crew import Crew
from headrace.rl.workers.drivers import DriverSettings, Entry
from headrace.rl.workers.faults import Fault
from headrace.rl.workers.settings import PoolSettings
from headrace.rl.workers.shard import Task, reset_task, step_task
from headrace.rl.workers.tally import Tally, WorkerMetrics

__all__ = ["Autoreset", "WorkerPool"]

Autoreset: TypeAlias = Literal["NextStep", "SameStep", "Disabled"]

_MAX_WORKERS = 120  # a ring has room for 128 participants


class WorkerPool:
    """`len(factories)` environments over `workers` processes (default: one per usable CPU). One thread at a time.

    Args:
        factories: What makes each environment, in its worker; pickled with cloudpickle, so lambdas will do.
        parallel: They make PettingZoo parallel environments, whose agents have a row each.
        autoreset: The value of Gymnasium's `AutoresetMode`.

    Raises `InvalidInput` for arguments out of range, `StageFailed` with the worker's traceback where an environment
    could not be made, differs from the first one, or took its process down.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], Any]],
        *,
        workers: int | None = None,
        parallel: bool = False,
        autoreset: Autoreset = "NextStep",
        settings: PoolSettings | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self.settings = settings or PoolSettings()
        self.n_envs, self.autoreset = len(factories), autoreset
        most = min(self.n_envs, _MAX_WORKERS)
        count = min(most, machine().usable_cpus) if workers is None else workers
        if not 1 <= count <= most:
            raise InvalidInput(f"workers: expected 1 … {most} for {self.n_envs} environments, got {count}")
        self.tally = Tally(metrics)
        same_step = autoreset == "SameStep"
        driving = DriverSettings(same_step, self.settings.bad_values, self.settings.bad_limit, self.settings.infos)
        self._busy: set[int] = set()
        self._torn = False  # a call was interrupted, by Ctrl-C say, and may have left anything half done
        self._crew = Crew(factories, count, parallel, driving, self.settings, self.tally)
        try:
            self.board = self._crew.open(self._spec(count, same_step))
        except BaseException:
            self._crew.release()
            raise

    def _spec(self, workers: int, same_step: bool) -> BoardSpec:
        self.spaces = first = self._crew.spaces[0]
        for number, other in enumerate(self._crew.spaces):
            if (other.observation, other.action, other.agents) != (first.observation, first.action, first.agents):
                raise StageFailed(
                    f"environment {number}",
                    f"all must have the spaces of the first one, {first.observation} and {first.action}, "
                    f"got {other.observation} and {other.action}",
                )
        self.agents = max(1, len(first.agents))
        return BoardSpec(first.observation, first.action, self.n_envs, self.agents, workers, same_step)

    @property
    def pids(self) -> list[int | None]:
        """The process of each worker; None while it waits to be replaced."""
        return [shard.process.pid if shard.process is not None else None for shard in self._crew.shards]

    @property
    def busy(self) -> int:
        """How many environments have something to do or to be received."""
        return len(self._busy)

    @property
    def closed(self) -> bool:
        return not self._crew.release.alive

    def send(self, envs: Sequence[int] | None = None) -> None:
        """Step `envs` (default: all) with the actions on the board.

        Raises `InvalidInput` for one that is busy, or over while autoreset is disabled; `Unavailable` once closed.
        """
        with self._whole():
            self._send(envs)

    def _send(self, envs: Sequence[int] | None) -> None:
        crew, board = self._crew, self.board
        crew.check_open()
        chosen: Sequence[int] = range(self.n_envs) if envs is None else envs
        if self._busy or envs is not None:
            self.check_free(chosen)
        rows = slice(None) if envs is None else chosen
        if self.autoreset == "NextStep":
            board.orders[rows] = board.over[rows]
        elif self.autoreset == "Disabled" and board.over[rows].any():
            env = next(env for env in chosen if board.over[env])
            raise InvalidInput(f"step: environment {env} has ended; reset it first (options={{'reset_mask': …}})")
        self._busy.update(chosen)
        lost = crew.mender.lost and [env for env in chosen if env in crew.mender.lost]
        if lost:
            crew.mend(crew.mender.tell(lost))
            chosen = [env for env in chosen if env not in set(lost)]
        if len(chosen) == self.n_envs:
            for shard in crew.shards:
                shard.give(step_task(shard.envs, True))
        else:
            crew.give([step_task(group, False) for group in crew.split(chosen)])

    def reset(self, seeds: dict[int, int | None], options: dict[str, Any] | None = None) -> None:
        """Reset the environments that `seeds` names. What was asked of them before is waited for and thrown away."""
        with self._whole(mends=len(seeds) == self.n_envs):
            self._reset(seeds, options)

    def _reset(self, seeds: dict[int, int | None], options: dict[str, Any] | None) -> None:
        crew = self._crew
        while not self._busy.intersection(seeds).issubset(crew.done):
            with suppress(StageFailed):
                crew.pump(None)
        crew.check_open()
        crew.done = [env for env in crew.done if env not in seeds]
        for env in seeds:
            crew.mender.forget(env)
            crew.entries.pop(env, None)
        self._busy.update(seeds)
        crew.give([reset_task({env: seeds[env] for env in group}, options) for group in crew.split(list(seeds))])

    def recv(self, n: int, timeout_s: float | None = None) -> list[int]:
        """At least `n` environments that are done with what they were asked to do, as they came.

        Raises `DeadlineExceeded` (nothing is lost, ask again), `InvalidInput` when fewer are busy, `StageFailed` for a
        fault that must not be mended, and `Unavailable` when a worker fails too often.
        """
        with self._whole():
            return self._recv(n, timeout_s)

    def _recv(self, n: int, timeout_s: float | None) -> list[int]:
        crew = self._crew
        if n > len(self._busy):
            raise InvalidInput(f"recv: expected at most {len(self._busy)}, the number of busy environments, got {n}")
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while len(crew.done) < n:
            crew.pump(deadline_s)
            if deadline_s is not None and len(crew.done) < n and time.monotonic() >= deadline_s:
                raise DeadlineExceeded(f"recv: {len(crew.done)} of {n} environments were done after {timeout_s} s")
        done, crew.done = crew.done, []
        self._busy.difference_update(done)
        crew.mender.note(None if len(done) == self.n_envs else done)
        return done

    def take_infos(self) -> tuple[dict[int, Entry], dict[int, Fault]]:
        """Infos, and faults that cut episodes, of environments that were received, by number; each is given once."""
        entries, self._crew.entries = self._crew.entries, {}
        return entries, self._crew.mender.take_marks()

    def call(self, verb: str, name: str, arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Call (or get, or `verb` "set") `name` of every environment with its own arguments; results in their order.

        Raises `InvalidInput` while any is busy, `StageFailed` with the worker's traceback for one that raised.
        """
        with self._whole():
            return self._call(verb, name, arguments)

    def _call(self, verb: str, name: str, arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        crew = self._crew
        crew.check_open()
        self.check_free(range(self.n_envs))
        crew.returned.clear()
        tasks = []
        for shard in crew.shards:
            calls = [(env, (verb, name, *arguments[env])) for env in shard.envs]
            try:
                tasks.append(Task(b"C", shard.envs, require("cloudpickle", "rl").dumps(calls)))
            except Exception as error:
                raise InvalidInput(f"{name}: its arguments cannot be sent: {error}") from error
        crew.give(tasks)
        while len(crew.returned) < self.n_envs:
            crew.pump(None)
        results = [crew.returned[env] for env in range(self.n_envs)]
        for fine, value in results:
            if not fine:
                raise value.as_error()
        return [value for _, value in results]

    def close(self, timeout_s: float | None = None) -> None:
        """Let the environments close and end all processes; those that take longer are killed. Again does nothing."""
        self._crew.close(self.settings.close_timeout_s if timeout_s is None else timeout_s)

    @contextmanager
    def _whole(self, mends: bool = False) -> Iterator[None]:
        """A call that is either gone through or known to be torn; only one that resets all `mends` that."""
        if self._torn and not mends:
            raise InvalidInput("a call was interrupted: reset all environments first")
        torn, self._torn = self._torn, True
        if torn:
            self._crew.check_open()
            self._crew.settle()
            self._busy.clear()
        try:
            yield
        except HeadraceError:
            self._torn = False
            raise
        self._torn = False

    def check_free(self, envs: Any) -> None:
        """Raises `InvalidInput` unless `envs` are different numbers of environments, none of which is busy."""
        chosen = np.asarray(envs)
        listed = chosen.tolist()
        if (
            chosen.ndim != 1
            or chosen.dtype.kind not in "iu"
            or len(set(listed)) < len(listed)
            or any(not 0 <= env < self.n_envs for env in listed)
        ):
            raise InvalidInput(f"ids: expected different numbers of environments below {self.n_envs}, got {listed}")
        busy = sorted(self._busy.intersection(listed))
        if busy:
            raise InvalidInput(f"environments {busy[:8]} are busy; receive them first")
