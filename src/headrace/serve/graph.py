"""The shape of a pipeline: steps in, their order and connections out; wiring mistakes are named here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.serve.protocol import Stage

__all__ = ["Graph", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One stage in a pipeline.

    Attributes:
        stage: What runs.
        name: Unique in its pipeline; appears in errors, metrics and traces.
        after: Names of the steps whose payload it takes; () takes the request, None the step written before it.
        timeout_s: Seconds it may take, or None for no limit but the request's own deadline.
    """

    stage: Stage
    name: str
    after: tuple[str, ...] | None = None
    timeout_s: float | None = None


class Graph:
    """Steps in an order in which each comes after those it needs.

    Raises `ConfigError` naming the steps at fault: none at all, duplicate or unknown names, cycles, more than one end.

    Attributes:
        steps: Sorted; steps written first come first where the graph leaves a choice.
        before: step name -> names it takes its payload from, as written.
        after: step name -> names that take its payload.
        ancestors: step name -> all names that come before it on some path.
    """

    def __init__(self, pipeline: str, steps: Sequence[Step]) -> None:
        self._pipeline = pipeline
        if not steps:
            raise self._error("has no stages")
        self._check_names(steps)
        self.before: dict[str, tuple[str, ...]] = {}
        previous: tuple[str, ...] = ()
        for step in steps:
            self.before[step.name] = previous if step.after is None else step.after
            previous = (step.name,)
        self._check_references()
        self.steps = self._sorted(steps)
        self.after: dict[str, tuple[str, ...]] = {
            step.name: tuple(other.name for other in self.steps if step.name in self.before[other.name])
            for step in self.steps
        }
        ends = [name for name, followers in self.after.items() if not followers]
        if len(ends) > 1:
            raise self._error(f"ends in several stages: {_list(ends)}; join them with one that comes after all of them")
        self.ancestors: dict[str, frozenset[str]] = {}
        for step in self.steps:
            near = self.before[step.name]
            self.ancestors[step.name] = frozenset(near).union(*(self.ancestors[name] for name in near))

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"pipeline {self._pipeline!r} {what}")

    def _check_names(self, steps: Sequence[Step]) -> None:
        seen: set[str] = set()
        for step in steps:
            if not step.name:
                raise self._error(f"has a stage without a name: {type(step.stage).__name__}")
            if step.name in seen:
                raise self._error(f"has two stages named {step.name!r}")
            if step.timeout_s is not None and not step.timeout_s > 0:
                raise self._error(f"stage {step.name!r}: timeout_s must be above 0, got {step.timeout_s}")
            seen.add(step.name)

    def _check_references(self) -> None:
        for name, needs in self.before.items():
            for need in needs:
                if need not in self.before:
                    raise self._error(f"stage {name!r} comes after {need!r}, which is not there: {_list(self.before)}")
            if len(set(needs)) < len(needs):
                raise self._error(f"stage {name!r} names a stage twice in `after`: {_list(needs)}")

    def _sorted(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        done: dict[str, Step] = {}
        while len(done) < len(steps):
            ready = [step for step in steps if step.name not in done and all(n in done for n in self.before[step.name])]
            if not ready:
                raise self._error(f"goes round in a circle: {' -> '.join(self._cycle(done))}")
            done[ready[0].name] = ready[0]
        return tuple(done.values())

    def _cycle(self, done: dict[str, Step]) -> list[str]:
        """One circle among the steps that are not done, in the direction payloads flow."""
        path: list[str] = [next(name for name in self.before if name not in done)]
        while path[-1] not in path[:-1]:
            path.append(next(name for name in self.before[path[-1]] if name not in done))
        return path[path.index(path[-1]) :][::-1]


def _list(names: Sequence[str] | dict[str, tuple[str, ...]]) -> str:
    return ", ".join(map(repr, names))
