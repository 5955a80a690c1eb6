"""One seat of a pool: the environments of one worker, the process that runs them now, and what it was asked to do.

Processes come and go; the seat stays. Tasks wait in it, in order, until the process there has answered them.
"""

from __future__ import annotations

import pickle
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import Unavailable
from headrace.rl.workers.board import Board
from headrace.rl.workers.process import WorkerProcess

__all__ = ["Shard", "Task", "reset_task", "step_task"]


@dataclass(slots=True)
class Task:
    """Kind `S` steps `envs`; `R` resets them with `seeds` and `options`; `C` calls what `payload` says; `P`: nothing.

    `restored`: columns of the board that a reset after a fault must not wipe, by environment (see `mending`).
    """

    kind: bytes
    envs: Sequence[int]
    payload: bytes = b""
    number: int = 0
    seeds: dict[int, int | None] | None = None
    options: dict[str, Any] | None = None
    restored: dict[int, dict[str, NDArray[Any]]] | None = None

    def again(self, envs: Sequence[int]) -> Task:
        """The same reset of some of the environments."""
        seeds = {env: (self.seeds or {}).get(env) for env in envs}
        return reset_task(seeds, self.options, self.restored)


def step_task(envs: Sequence[int], whole: bool) -> Task:
    return Task(b"S", envs, b"" if whole else array("I", envs).tobytes())


def reset_task(
    seeds: dict[int, int | None],
    options: dict[str, Any] | None = None,
    restored: dict[int, dict[str, NDArray[Any]]] | None = None,
) -> Task:
    payload = pickle.dumps((seeds, options))
    return Task(b"R", list(seeds), payload, seeds=seeds, options=options, restored=restored)


class Shard:
    def __init__(self, index: int, envs: Sequence[int], payload: str) -> None:
        self.index, self.envs, self._payload = index, list(envs), payload
        self.process: WorkerProcess | None = None
        self.ready = False  # the process has made its environments
        self.tasks: deque[Task] = deque()
        self.epoch = 0
        self.start_at_s = 0.0
        self.failures_s: list[float] = []
        self._answered = 0  # calls of environments that answered tasks took
        self._seen, self._stuck_s = -1, 0.0

    def start(self, board: Board | None) -> None:
        """Start a process and hand it what waits. Raises `Unavailable` when the system gives none."""
        self.epoch += 1
        self.ready, self._answered = False, 0
        self.alive_again()
        if board is not None:
            board.progress[self.index] = (0, -1, 0, 0, 0, 0, 0, 0)
        try:
            self.process = WorkerProcess(self.index, self.epoch, self._payload, len(self.envs))
        except OSError as error:
            raise Unavailable(f"worker {self.index}: no process could be started: {error}") from error
        if board is not None:
            self.show(board)
        for task in self.tasks:
            task.number = self.process.send(task.kind, task.payload)

    def show(self, board: Board) -> None:
        assert self.process is not None
        self.process.send(b"B", pickle.dumps((board.spec, board.name)))

    def give(self, task: Task) -> None:
        """Ask for it now, or once a process is there."""
        if not self.tasks:
            self.alive_again()
        self.tasks.append(task)
        if self.process is not None:
            task.number = self.process.send(task.kind, task.payload)

    def answered(self, number: int) -> list[Task]:
        """The task with this number, done now, after any older ones whose answers got lost in an interrupted call."""
        tasks = []
        while self.tasks and self.tasks[0].number <= number:
            tasks.append(self.tasks.popleft())
            self._answered += 1 if tasks[-1].kind == b"C" else len(tasks[-1].envs)
        return tasks

    def settled(self, number: int, board: Board) -> None:
        """The process has nothing to do up to this number, whatever became of the tasks."""
        self.answered(number)
        self._answered = int(board.progress[self.index, 0])

    def alive_again(self) -> None:
        self._seen, self._stuck_s = -1, 0.0

    def stuck_s(self, board: Board | None, passed_s: float) -> float:
        """Seconds for which somebody has waited here and nothing has begun; `passed_s` since the last look."""
        begun = -1 if board is None else int(board.progress[self.index, 0])
        if begun != self._seen or (self.ready and not self.tasks):
            self._seen, self._stuck_s = begun, 0.0
        else:
            self._stuck_s += passed_s
        return self._stuck_s

    def reached(self, board: Board | None) -> tuple[int, bool]:
        """How many environments of the first task are done, and whether it is in the next one."""
        if board is None or not self.tasks:
            return 0, False
        begun, within = (int(number) for number in board.progress[self.index, :2])
        task = self.tasks[0]
        if task.kind == b"C" or self.process is None or not task.number:
            return 0, False
        done = begun - self._answered
        inside = within >= 0 and done > 0
        return int(np.clip(done - inside, 0, len(task.envs))), inside

    def guilty(self, board: Board) -> int:
        """The environment that the process was in, or would have been next."""
        reached, _ = self.reached(board)
        envs = self.tasks[0].envs if self.tasks else self.envs
        return envs[min(reached, len(envs) - 1)]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.process, self.ready = None, False
