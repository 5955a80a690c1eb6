"""The program of a worker process: commands come in over its ring, environments are stepped, answers go out.

Commands: `B` here is the board, `S` step (all environments, or those whose numbers follow), `R` reset, `C` call, `P`
say that all before is done, `Q` quit. Answers: `r` the environments are made, `s` done, with infos and faults if there
are any, `c` what the calls returned, `p` as asked, `e` an environment could not be made.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core import shm
from headrace.core.ring import MpmcRing, SpscRing
from headrace.errors import ChannelClosed, InvalidInput, Unavailable
from headrace.rl.workers.board import Board, BoardSpec
from headrace.rl.workers.drivers import BadValue, Driver, DriverSettings, Entry, GymDriver, ParallelDriver, Spaces
from headrace.rl.workers.faults import Fault
from headrace.rl.workers.lifeline import Lifeline
from headrace.rl.workers.messages import Message, Pieces, awaited, push

__all__ = ["Job", "main"]

_SPIN_S = 500e-6  # about what a learner takes to choose the next actions
_CHANGED = "its spaces are not what they were: expected {}, got {}"


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is for, pickled by its parent: its environments, and the ring to answer on.

    `factories`: a list of what makes each of `envs`, pickled for itself, so that a failure to unpickle can be told.
    """

    worker: int
    parallel: bool
    envs: list[int]
    factories: bytes
    results: str
    settings: DriverSettings


def main(payload: str, epoch: str, commands: str, lifeline: str) -> None:
    """Run until told to quit, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    Lifeline(int(lifeline))
    ring = SpscRing.attach(commands)
    segment = shm.attach(payload)
    pickled = segment.array().tobytes()
    del segment
    worker = None
    try:
        job: Job = pickle.loads(pickled)
        worker = _Worker(job, int(epoch), ring)
        worker.serve()
    except (ChannelClosed, Unavailable):
        pass  # the parent closed the rings, or died
    finally:
        if worker is not None:
            for driver in worker.drivers:
                driver.discard()


class _Worker:
    def __init__(self, job: Job, epoch: int, commands: SpscRing) -> None:
        self.job, self.epoch, self.commands = job, epoch, commands
        self.results = MpmcRing.attach(job.results)
        self.drivers: list[Driver] = []
        self.places = {number: place for place, number in enumerate(job.envs)}
        self.number = 0

    def answer(self, kind: bytes, payload: bytes = b"") -> None:
        push(self.results, kind, self.job.worker, self.epoch, self.number, payload)

    def serve(self) -> None:
        found = self._build()
        if found is None:
            return
        self.answer(b"r", pickle.dumps(found))
        pieces = Pieces()
        commands, join = self.commands, pieces.join
        while True:
            message = join(awaited(commands, _SPIN_S))
            if message is None:
                continue
            self.number = message.number
            if message.kind == b"S":
                chosen = array("I", message.payload) if message.payload else None
                calls = self.drivers if chosen is None else [self.drivers[self.places[i]] for i in chosen]
                self._run(calls, None, None)
            elif message.kind == b"R":
                seeds, options = pickle.loads(message.payload)
                self._run([self.drivers[self.places[i]] for i in seeds], seeds, options)
            elif message.kind == b"B":
                self._attach(*pickle.loads(message.payload), found=found)
            elif message.kind == b"C":
                self._call(message)
            elif message.kind == b"P":
                self.answer(b"p")
            else:
                return

    def _build(self) -> list[Spaces] | None:
        kind = ParallelDriver if self.job.parallel else GymDriver
        found: list[Spaces] = []
        try:
            factories: list[Callable[[], Any]] = pickle.loads(self.job.factories)
            for number, factory in zip(self.job.envs, factories, strict=True):
                self.drivers.append(kind(number, factory))
                found.append(self.drivers[-1].build())
        except BaseException as error:
            number = self.job.envs[len(found)]
            told = Fault(number, "error", 0, None, f"could not be made: {_said(error)}", _trace())
            self.answer(b"e", pickle.dumps(told))
            return None
        return found

    def _attach(self, spec: BoardSpec, name: str, *, found: Sequence[Spaces]) -> None:
        board = Board.attach(spec, name)
        self.orders = memoryview(board.orders)
        self.progress = memoryview(board.progress[self.job.worker])
        for driver, spaces in zip(self.drivers, found, strict=True):
            if (spaces.observation, spaces.action) != (spec.observation_space, spec.action_space):
                expected, got = (spec.observation_space, spec.action_space), (spaces.observation, spaces.action)
                told = Fault(driver.number, "shape", 0, None, _CHANGED.format(expected, got))
                self.answer(b"e", pickle.dumps(told))
            driver.attach(board, self.job.settings)

    def _run(
        self, drivers: Sequence[Driver], seeds: dict[int, int | None] | None, options: dict[str, Any] | None
    ) -> None:
        """Step, or reset where `seeds` or an order says so; answer once all are done."""
        entries: list[Entry] = []
        faults: list[Fault] = []
        progress, orders = self.progress, self.orders
        for driver in drivers:
            number = driver.number
            progress[0] += 1
            progress[1] = number
            try:
                if seeds is not None:
                    entry = driver.reset(seeds[number], options)
                elif orders[number]:
                    entry = driver.reset(None, None)
                else:
                    entry = driver.step()
            except BaseException as error:
                faults.append(_fault(driver, error))
            else:
                if entry is not None:
                    entries.append(entry)
        progress[1] = -1
        notes = [note for driver in drivers if driver.notes for note in _taken(driver.notes)]
        self.answer(b"s", _dumps(entries, faults, notes) if entries or faults or notes else b"")

    def _call(self, message: Message) -> None:
        """Call a method, or get or set an attribute, of chosen environments; answer what each gave."""
        given: list[tuple[int, bool, Any]] = []
        self.progress[0] += 1
        for number, (verb, name, arguments, named) in pickle.loads(message.payload):
            driver = self.drivers[self.places[number]]
            try:
                if driver.env is None:
                    driver.build()
                given.append((number, True, _called(driver.env, verb, name, arguments, named)))
            except BaseException as error:
                fault = Fault(number, "error", 0, None, f"{verb} {name!r}: {_said(error)}", _trace())
                given.append((number, False, fault))
        try:
            payload = pickle.dumps(given)
        except Exception as error:
            number = given[0][0]
            fault = Fault(number, "error", 0, None, f"the answer cannot be sent: {_said(error)}")
            payload = pickle.dumps([(number, False, fault)])
        self.answer(b"c", payload)


def _called(env: Any, verb: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if verb == "set":
        setter = getattr(env, "set_wrapper_attr", None)
        return setattr(env, name, *arguments) if setter is None else setter(name, *arguments)
    getter = getattr(env, "get_wrapper_attr", None)
    found = getattr(env, name) if getter is None else getter(name)
    return found(*arguments, **named) if callable(found) else found


def _fault(driver: Driver, error: BaseException) -> Fault:
    """Tell what happened, and let go of an environment that cannot be trusted any more."""
    kind = "bad_value" if isinstance(error, BadValue) else "shape" if isinstance(error, InvalidInput) else "error"
    message = str(error) if isinstance(error, InvalidInput) else f"raised {_said(error)}"
    step, action = driver.doing
    trace = _trace()
    driver.discard()
    return Fault(driver.number, kind, step, action, message, trace)  # type: ignore[arg-type]


def _taken(notes: list[Fault]) -> list[Fault]:
    taken = notes[:]
    notes.clear()
    return taken


def _dumps(entries: list[Entry], faults: list[Fault], notes: list[Fault]) -> bytes:
    try:
        return pickle.dumps((entries, faults, notes), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # an info that cannot travel, e.g. an open file: that one is told in words
        told = [
            Entry(entry.env, {k: _portable(v) for k, v in entry.info.items()}, _portable(dict(entry.final_info)))
            for entry in entries
        ]
        return pickle.dumps((told, faults, notes))


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(part) for key, part in value.items()}
    with contextlib.suppress(Exception):
        pickle.dumps(value)
        return value
    return repr(value)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _trace() -> str:
    return traceback.format_exc()
