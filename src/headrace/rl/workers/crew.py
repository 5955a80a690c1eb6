"""The processes of a pool at work: answers are taken in, the dead and the hung are noticed and replaced.

Tasks go in by `give`; environments that are done come out in `done`, their infos in `entries`. Nothing runs in the
background: all of it happens in `pump`, while somebody waits.
"""

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from headrace.core.ring import MpmcRing
from headrace.errors import DeadlineExceeded, HeadraceError, StageFailed, Unavailable
from headrace.rl.workers.board import Board, BoardSpec
from headrace.rl.workers.drivers import DriverSettings, Entry, Spaces
from headrace.rl.workers.faults import Fault, FaultKind
from headrace.rl.workers.held import Held, arrived
from headrace.rl.workers.mending import Mender, Outcome
from headrace.rl.workers.messages import HEADER_BYTES, Message, Pieces, awaited
from headrace.rl.workers.restarts import delay_s
from headrace.rl.workers.settings import PoolSettings
from headrace.rl.workers.shard import Shard, Task
from headrace.rl.workers.tally import Tally

__all__ = ["Crew"]

_SPIN_S = 100e-6
_LOOK_S = 0.02  # how often processes are looked at while somebody waits


class Crew:
    """Processes for `factories`, started by the constructor. `spaces` gives what each environment says of itself."""

    mender: Mender

    def __init__(
        self,
        factories: Sequence[Callable[[], Any]],
        workers: int,
        parallel: bool,
        driving: DriverSettings,
        settings: PoolSettings,
        tally: Tally,
    ) -> None:
        self.settings, self.tally = settings, tally
        self.board: Board | None = None  # until all spaces are known
        self.done: list[int] = []
        self.entries: dict[int, Entry] = {}
        self.returned: dict[int, tuple[bool, Any]] = {}
        self._results = MpmcRing.create(slots=1024, slot_bytes=2048 + HEADER_BYTES)
        self._inbox: deque[bytes] = deque()
        self._pieces = Pieces()
        self._found: dict[int, list[Spaces]] = {}
        self._broken: HeadraceError | None = None
        self._looked_s = time.monotonic()
        self._held = Held(os.getpid(), self._results)
        self.release = weakref.finalize(self, self._held.release)
        try:
            self.shards = self._held.seat(factories, workers, parallel, driving)
            self._shard_of = [shard for shard in self.shards for _ in shard.envs]
            for shard in self.shards:
                shard.start(None)
            while len(self._found) < len(self.shards):
                self.pump(None)
        except BaseException:
            self.release()
            raise

    @property
    def spaces(self) -> list[Spaces]:
        return [one for shard in self.shards for one in self._found[shard.index]]

    def open(self, spec: BoardSpec) -> Board:
        """Make the board, show it to all, and mend from now on what fails."""
        self.board = self._held.board = Board.create(spec)
        self.mender = Mender(self.board, spec.final, self.settings, self.tally)
        for shard in self.shards:
            shard.show(self.board)
        return self.board

    def check_open(self) -> None:
        """Raises `Unavailable` once closed, and once a worker has failed too often."""
        if self._broken is not None:
            raise self._broken
        if not self.release.alive:
            raise Unavailable("workers: the pool is closed")

    def give(self, tasks: Sequence[Task]) -> None:
        """Each task to the process of its environments, which are all of one."""
        for task in tasks:
            self._shard_of[task.envs[0]].give(task)

    def split(self, envs: Sequence[int]) -> list[list[int]]:
        """`envs` by process."""
        groups: dict[int, list[int]] = {}
        for env in envs:
            groups.setdefault(self._shard_of[env].index, []).append(env)
        return list(groups.values())

    def settle(self) -> None:
        """After a call that was interrupted anywhere: forget all tasks, once no process is at any of them."""
        for shard in self.shards:
            shard.give(Task(b"P", []))
        while any(task.kind == b"P" for shard in self.shards for task in shard.tasks):
            with suppress(StageFailed):
                self.pump(None)
        self.done.clear()
        self.entries.clear()

    def mend(self, outcome: Outcome) -> None:
        """Do what the mender says; raises its error."""
        self.done.extend(outcome.done)
        self.give(outcome.tasks)
        if outcome.error is not None:
            raise outcome.error

    def close(self, patience_s: float) -> None:
        """Let the environments close; kill those that take longer, and let go of everything. Again does nothing."""
        if self.release.alive and patience_s > 0:
            processes = [shard.process for shard in self.shards if shard.process is not None]
            for process in processes:
                process.quit()
            deadline_s = time.monotonic() + patience_s
            for process in processes:
                process.wait(max(0.0, deadline_s - time.monotonic()))
        self.release()

    def pump(self, deadline_s: float | None) -> None:
        """Wait a little for answers, take them in, and look after the processes when it is time."""
        self.check_open()
        patience_s = _LOOK_S if deadline_s is None else min(_LOOK_S, max(0.0, deadline_s - time.monotonic()))
        if not self._inbox:
            try:
                self._inbox.append(awaited(self._results, _SPIN_S, patience_s))
            except DeadlineExceeded:
                pass
            except Unavailable:  # every worker is dead; the look below finds out
                time.sleep(0.001)
        self._take_in()
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            # Time in which this process did not run (it was stopped, or nobody waited) counts for no worker.
            passed_s, self._looked_s = min(now_s - self._looked_s, 5 * _LOOK_S), now_s
            for shard in self.shards:
                self._look(shard, now_s, passed_s)

    def _take_in(self) -> None:
        while self._inbox:
            message = self._pieces.join(self._inbox.popleft())
            if message is not None:
                self._answer(message)

    def _answer(self, message: Message) -> None:
        shard = self.shards[message.sender]
        if message.epoch != shard.epoch or shard.process is None:
            return
        if message.kind == b"s":
            tasks = shard.answered(message.number)
            for task in tasks[:-1]:
                self.done.extend(task.envs)
            if tasks:
                self._finish(tasks[-1], *(pickle.loads(message.payload) if message.payload else ((), (), ())))
        elif message.kind == b"p":
            assert self.board is not None
            shard.settled(message.number, self.board)
        elif message.kind == b"r":
            shard.ready = True
            shard.alive_again()
            self._found[shard.index] = pickle.loads(message.payload)
        elif message.kind == b"c":
            shard.answered(message.number)
            self.returned.update((env, (fine, value)) for env, fine, value in pickle.loads(message.payload))
        else:
            self._fail(shard, pickle.loads(message.payload))

    def _finish(
        self, task: Task, entries: Sequence[Entry] = (), faults: Sequence[Fault] = (), notes: Sequence[Fault] = ()
    ) -> None:
        for entry in entries:
            self.entries[entry.env] = entry
        if not faults and not notes and task.restored is None:
            self.done.extend(task.envs)
            return
        self.mend(self.mender.finish(task, faults, notes))

    def _look(self, shard: Shard, now_s: float, passed_s: float) -> None:
        if shard.process is None:
            if now_s >= shard.start_at_s:
                shard.start(self.board)
            return
        wrong = self._wrong_with(shard, passed_s)
        if wrong is None:
            return
        kind, message = wrong
        if kind == "crash":  # it may have answered before it died
            self._inbox.extend(arrived(self._results))
            self._take_in()
        if self.board is None:
            self._fail(shard, Fault(shard.envs[0], kind, 0, None, message))
        elif shard.process is not None:
            self._fail(shard, self.mender.blame(shard.guilty(self.board), kind, message))

    def _wrong_with(self, shard: Shard, passed_s: float) -> tuple[FaultKind, str] | None:
        assert shard.process is not None
        ending = shard.process.ending
        if ending is not None:
            return "crash", f"its worker {ending}"
        limit_s = self.settings.step_timeout_s if shard.ready else self.settings.start_timeout_s
        if limit_s is not None and shard.stuck_s(self.board, passed_s) > limit_s:
            return "hang", f"{'it has' if shard.ready else 'its worker, starting, has'} taken more than {limit_s} s"
        limit = self.settings.rss_limit_bytes
        if limit is not None:
            used = shard.process.rss_bytes
            if used > limit:
                return "memory", f"its worker has {used >> 20} MiB of memory, more than {limit >> 20} MiB"
        return None

    def _fail(self, shard: Shard, cause: Fault) -> None:
        """The process of `shard` is of no use any more because of `cause`: end it, start another, mend what it did."""
        reached, inside = shard.reached(self.board)
        tasks = list(shard.tasks)
        shard.tasks.clear()
        shard.kill()
        if self.board is None:
            raise cause.as_error()
        self.tally.restart(cause.kind)
        outcome = self.mender.abandon(shard.envs, tasks, reached, cause if inside else None, cause)
        policy, now_s = self.settings.restarts, time.monotonic()
        shard.failures_s = [at for at in shard.failures_s if now_s - at < policy.window_s] + [now_s]
        pause_s = delay_s(policy, shard.failures_s, now_s)
        if pause_s is None:
            names = f"{shard.envs[0]} … {shard.envs[-1]}"
            self._broken = outcome.error = Unavailable(
                f"the worker of environments {names} failed more than {policy.limit} times in {policy.window_s:g} s; "
                f"the last time: {cause}"
            )
            self._broken.__cause__ = cause.as_error()
        else:
            shard.start_at_s = now_s + pause_s
            if self.settings.on_fault == "raise":
                outcome.error = cause.as_error()
        self.mend(outcome)
