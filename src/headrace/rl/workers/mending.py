"""What becomes of tasks in which something failed: a task and its faults in; who is done, and what to ask again, out.

An episode that a fault cut short is reported as truncated, by a step with reward 0 whose last observation is the last
one known, and counted. A reset that failed is asked for again: no episode had begun. Nothing here waits or talks to
processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, Unavailable
from headrace.rl.workers.board import Board
from headrace.rl.workers.drivers import plain
from headrace.rl.workers.faults import Fault
from headrace.rl.workers.restarts import delay_s
from headrace.rl.workers.settings import PoolSettings
from headrace.rl.workers.shard import Task, reset_task
from headrace.rl.workers.tally import Tally

__all__ = ["Mender", "Outcome"]

_KEPT = ("rewards", "returns", "lengths", "terminated", "truncated")


@dataclass(slots=True)
class Outcome:
    """Environments that are done, tasks to give out, and the error to raise after that, if any."""

    done: list[int] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    error: HeadraceError | None = None


class Mender:
    """Of one pool. `lost`: environments that were lost while nothing was asked of them, told with their next step."""

    def __init__(self, board: Board, same_step: bool, settings: PoolSettings, tally: Tally) -> None:
        self.board, self.same_step, self.settings, self.tally = board, same_step, settings, tally
        self.lost: dict[int, Fault] = {}
        self._marks: dict[int, Fault] = {}
        self._failures_s: dict[int, list[float]] = {}
        # As they were when the environment was last received: a worker that dies leaves the board's half written.
        self._lengths = np.zeros(board.spec.rows, np.int64)
        self._returns = np.zeros(board.spec.rows)
        self._begun = np.zeros(board.spec.rows, np.bool_)

    def note(self, envs: Sequence[int] | None) -> None:
        """Remember where the running episodes of `envs` (None: all) stand."""
        board, rows = self.board, slice(None) if envs is None else self._rows_of(envs)
        going = ~(board.terminated[rows] | board.truncated[rows])
        self._begun[rows] = True
        self._lengths[rows] = board.lengths[rows] * going
        self._returns[rows] = board.returns[rows] * going

    def forget(self, env: int) -> None:
        """It is going to be reset; what was lost with it is not told any more."""
        self.lost.pop(env, None)
        self._marks.pop(env, None)

    def take_marks(self) -> dict[int, Fault]:
        marks, self._marks = self._marks, {}
        return marks

    def blame(self, env: int, kind: Any, message: str) -> Fault:
        """A fault of `env` as seen from here, in what it was last asked to do."""
        row, board = env * self.board.spec.agents, self.board
        if board.orders[env]:
            return Fault(env, kind, 0, None, message)
        actions = [plain(board.actions.element(row + i)) for i in range(board.spec.agents)]
        return Fault(env, kind, int(self._lengths[row]) + 1, actions[0] if len(actions) == 1 else actions, message)

    def finish(self, task: Task, faults: Sequence[Fault], notes: Sequence[Fault]) -> Outcome:
        """A task that a worker went through. Faulty environments are unusable until they are reset."""
        outcome = Outcome()
        for note in notes:
            self.tally.fault(note)
            if self.settings.bad_values == "drop":
                self._marks[note.env] = note
                self.tally.lose()
        faulty = {fault.env: fault for fault in faults}
        for env in task.envs:
            if env not in faulty:
                self._restore(task, env)
                outcome.done.append(env)
        for env, fault in faulty.items():
            self.tally.fault(fault)
            outcome.error = self._refusal(fault) or outcome.error
            if outcome.error is not None:
                self.board.over[env] = True
                outcome.done.append(env)
            elif task.kind == b"R":
                outcome.tasks.append(task.again([env]))
            else:
                self._report(fault, outcome)
        return outcome

    def abandon(
        self, envs: Iterable[int], tasks: Sequence[Task], reached: int, guilty: Fault | None, cause: Fault
    ) -> Outcome:
        """The tasks of a process that is gone: `reached` environments of the first one were done, `guilty` was next."""
        outcome = Outcome()
        self.tally.fault(cause)
        idle = set(envs)
        pending: list[Fault] = []
        for place, task in enumerate(tasks):
            unfinished = task.envs[reached:] if place == 0 and task.kind == b"S" else task.envs
            if task.kind == b"C":
                outcome.error = cause.as_error()
                continue
            idle.difference_update(unfinished)
            if task.kind == b"R":
                outcome.tasks.append(task.again(task.envs))
            else:
                outcome.done.extend(task.envs[: len(task.envs) - len(unfinished)])
                blamed = {} if guilty is None else {guilty.env: guilty}
                pending += [blamed.get(env) or self._lost(env, cause) for env in unfinished]
        for fault in pending:
            if fault is not guilty:
                self.tally.fault(fault)
            self._report(fault, outcome)
        for env in idle:
            if self._begun[env * self.board.spec.agents] and (self.same_step or not self.board.over[env]):
                self.lost[env] = self._lost(env, cause)
                self.tally.fault(self.lost[env])
        return outcome

    def tell(self, envs: Iterable[int]) -> Outcome:
        """Steps of environments that were lost: each is done at once."""
        outcome = Outcome()
        for env in envs:
            self._report(self.lost.pop(env), outcome)
        return outcome

    def _lost(self, env: int, cause: Fault) -> Fault:
        why = f"lost with its worker: {cause.message}"
        return self.blame(env, "lost", why if cause.env == env else f"{why} (environment {cause.env})")

    def _refusal(self, fault: Fault) -> HeadraceError | None:
        """The error to stop with, if this fault is not to be mended."""
        if self.settings.on_fault == "raise" or (fault.kind == "bad_value" and self.settings.bad_values == "stop"):
            return fault.as_error()
        now_s, policy = time.monotonic(), self.settings.restarts
        times_s = [at for at in self._failures_s.get(fault.env, []) if now_s - at < policy.window_s]
        self._failures_s[fault.env] = [*times_s, now_s]
        if delay_s(policy, self._failures_s[fault.env], now_s) is not None:
            return None
        error = Unavailable(f"environment {fault.env} failed more than {policy.limit} times in {policy.window_s:g} s")
        error.__cause__ = fault.as_error()
        return error

    def _report(self, fault: Fault, outcome: Outcome) -> None:
        """Let the step in which `fault` happened end the episode, truncated; or begin anew what was but a reset."""
        board, env = self.board, fault.env
        rows = slice(env * board.spec.agents, (env + 1) * board.spec.agents)
        if board.orders[env]:
            outcome.tasks.append(reset_task({env: None}))
            return
        ended = self.same_step and bool(board.over[env])  # it had come to its end; the reset after it failed
        if not ended:
            acting = board.alive[rows].copy()
            board.rewards[rows], board.terminated[rows], board.truncated[rows] = 0.0, False, acting
            board.lengths[rows] = self._lengths[rows] + acting
            board.returns[rows] = self._returns[rows]
            self._marks[env] = fault
            self.tally.lose()
        if not self.same_step:
            board.over[env] = True
            if board.spec.agents > 1:
                board.alive[rows] = False
            outcome.done.append(env)
            return
        if not ended:
            for final, now in zip(board.final.arrays, board.obs.arrays, strict=True):
                final[rows] = now[rows]
        kept = {name: getattr(board, name)[rows].copy() for name in _KEPT}
        outcome.tasks.append(reset_task({env: None}, None, {env: kept}))

    def _restore(self, task: Task, env: int) -> None:
        kept = (task.restored or {}).get(env)
        if kept is None:
            return
        first = env * self.board.spec.agents
        for name, values in kept.items():
            getattr(self.board, name)[first : first + len(values)] = values

    def _rows_of(self, envs: Sequence[int]) -> NDArray[np.intp]:
        agents = self.board.spec.agents
        return (np.asarray(envs, np.intp)[:, np.newaxis] * agents + np.arange(agents)).reshape(-1)
