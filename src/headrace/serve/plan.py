"""A pipeline's graph compiled once into groups that cross threads no more than needed; then payload in, payload out.

Adjacent blocking stages of a chain share one hop to a worker thread, coroutines and inline stages run on the event
loop, independent branches run side by side. The context is checked between stages and wakes every wait.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from headrace.core.context import Context
from headrace.errors import Cancelled, HeadraceError, StageFailed
from headrace.serve.branches import Branch, merge
from headrace.serve.graph import Graph, Step
from headrace.serve.protocol import Payload
from headrace.serve.watch import Watch
from headrace.serve.workers import Workers

__all__ = ["Observer", "Plan"]

Where: TypeAlias = Literal["any", "loop", "thread"]


class Observer(Protocol):
    """Told of every stage that ran, by the thread that ran it; must be thread-safe.

    `started_s` is a `time.perf_counter()` value; `error` is None, or what the stage raised.
    """

    def stage(
        self, pipeline: str, stage: str, ctx: Context, started_s: float, seconds: float, error: BaseException | None, /
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """One compiled step."""

    name: str
    process: Callable[[Payload, Context], Any]
    timeout_s: float | None
    where: Where
    coroutine: bool


@dataclass(slots=True)
class _Group:
    """Calls that run in one place, one after the other, and the groups whose payload they take."""

    calls: list[_Call]
    where: Where
    before: list[int]
    forks: bool = False

    def accepts(self, call: _Call) -> bool:
        alone = any(c.where == "thread" and c.timeout_s is not None for c in (*self.calls, call))
        return not alone and (self.where == call.where or "any" in (self.where, call.where))


@dataclass(slots=True)
class _Progress:
    """Where a run of a group is: written by its thread, read by the event loop that waits for it."""

    stage: str = ""
    started_s: float = 0.0
    left: bool = False


class Plan:
    """The executable form of a `Graph`. Any number of runs may be under way at once."""

    def __init__(self, pipeline: str, graph: Graph, workers: Workers, observer: Observer | None = None) -> None:
        self.pipeline = pipeline
        self._graph = graph
        self._workers = workers
        self._observer = observer
        self._groups = _compile(graph)
        self._chain = all(group.before == ([i - 1] if i else []) for i, group in enumerate(self._groups))

    @property
    def groups(self) -> list[tuple[str, list[str]]]:
        """("loop" or "thread", the stages that run there together), in order."""
        return [("loop" if g.where == "any" else g.where, [c.name for c in g.calls]) for g in self._groups]

    async def run(self, payload: Payload, ctx: Context, expired: str = "") -> Payload:
        """Run every stage. Raises what a stage raises, with its name; `expired` is the message of a missed deadline."""
        with Watch(ctx, expired) as watch:
            if not self._chain:
                return await self._run_branches(payload, ctx, watch)
            for group in self._groups:
                payload = await self._run_group(group, payload, ctx, watch, None)
            return payload

    async def _run_branches(self, payload: Payload, ctx: Context, watch: Watch) -> Payload:
        request = Branch(payload)
        tasks: list[asyncio.Task[Branch]] = []

        async def run(group: _Group) -> Branch:
            if group.before:
                sources = [(await tasks[i]) for i in group.before]
                shared = any(self._groups[i].forks for i in group.before)
            else:
                sources, shared = [request], True
            if len(sources) > 1:
                branch = _at_stage(group.calls[0].name, lambda: merge(sources, self._graph.ancestors))
            else:
                branch = sources[0].fork() if shared else sources[0]
            branch.payload = await self._run_group(group, branch.payload, ctx, watch, branch)
            return branch

        try:
            async with asyncio.TaskGroup() as together:
                for group in self._groups:
                    tasks.append(together.create_task(run(group)))  # noqa: PERF401 - tasks read each other by index
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return tasks[-1].result().payload

    async def _run_group(
        self, group: _Group, payload: Payload, ctx: Context, watch: Watch, branch: Branch | None
    ) -> Payload:
        if group.where == "thread":
            first = group.calls[0]
            if first.timeout_s is not None:
                return await self._timed(first, ctx, partial(self._hop, group, payload, branch=branch))
            return await self._hop(group, payload, ctx, watch, branch)
        for call in group.calls:
            if call.timeout_s is None:
                payload = await self._on_loop(call, payload, ctx, watch, branch)
            else:
                payload = await self._timed(call, ctx, partial(self._on_loop, call, payload, branch=branch))
        return payload

    async def _timed(self, call: _Call, ctx: Context, run: Callable[[Context, Watch], Any]) -> Payload:
        """Run one stage under its own, narrower deadline."""
        own = ctx.child(call.timeout_s)
        with Watch(own, f"stage {call.name!r}: no answer within {call.timeout_s:g} s") as watch:
            result: Payload = await run(own, watch)
        return result

    async def _on_loop(
        self, call: _Call, payload: Payload, ctx: Context, watch: Watch, branch: Branch | None
    ) -> Payload:
        started_s = time.perf_counter()
        failure: BaseException | None = None
        try:
            ctx.check()
            before = branch.values() if branch is not None else None
            result = call.process(payload, ctx)
            if call.coroutine:
                result = await result
            return _settled(call.name, result, branch, before)
        except BaseException as error:
            failure = _named(error, call.name, watch)
            if failure is error:
                raise
            raise failure from failure.__cause__
        finally:
            self._report(call.name, ctx, started_s, failure)

    async def _hop(self, group: _Group, payload: Payload, ctx: Context, watch: Watch, branch: Branch | None) -> Payload:
        """Run a whole group on one worker thread."""
        progress = _Progress(group.calls[0].name, time.perf_counter())

        def work() -> Payload:
            value = payload
            for call in group.calls:
                progress.stage, progress.started_s = call.name, time.perf_counter()
                if progress.left:
                    raise Cancelled(f"request {ctx.request_id}: nobody waits for the answer")
                ctx.check()
                before = branch.values() if branch is not None else None
                value = _settled(call.name, call.process(value, ctx), branch, before)
                if not progress.left:
                    self._report(call.name, ctx, progress.started_s, None)
            return value

        failure: BaseException | None = None
        try:
            return await self._workers.run(work)
        except BaseException as error:
            progress.left = True
            failure = _named(error, progress.stage, watch)
            if failure is error:
                raise
            raise failure from failure.__cause__
        finally:
            if failure is not None:
                self._report(progress.stage, ctx, progress.started_s, failure)

    def _report(self, stage: str, ctx: Context, started_s: float, error: BaseException | None) -> None:
        if self._observer is not None:
            self._observer.stage(self.pipeline, stage, ctx, started_s, time.perf_counter() - started_s, error)


def _compile(graph: Graph) -> list[_Group]:
    groups: list[_Group] = []
    home: dict[str, int] = {}
    for step in graph.steps:
        call = _call(step)
        before = graph.before[step.name]
        only = home[before[0]] if len(before) == 1 and len(graph.after[before[0]]) == 1 else None
        if only is not None and groups[only].accepts(call):
            group = groups[only]
            group.calls.append(call)
            if group.where == "any":
                group.where = call.where
            home[step.name] = only
        else:
            home[step.name] = len(groups)
            groups.append(_Group([call], call.where, [home[name] for name in before]))
    for group in groups:
        group.forks = len(graph.after[group.calls[-1].name]) > 1
    return groups


def _call(step: Step) -> _Call:
    process = step.stage.process
    coroutine = inspect.iscoroutinefunction(process)
    # A plain stage with a time limit needs a thread of its own: the event loop cannot interrupt itself.
    inline = bool(getattr(step.stage, "inline", False)) and step.timeout_s is None
    where: Where = "loop" if coroutine else "any" if inline else "thread"
    return _Call(step.name, process, step.timeout_s, where, coroutine)


def _settled(stage: str, result: Any, branch: Branch | None, before: dict[Any, Any] | None) -> Payload:
    if not isinstance(result, Payload):
        hint = "; declare `process` with `async def`" if inspect.isawaitable(result) else ""
        if inspect.iscoroutine(result):
            result.close()
        raise StageFailed(stage, f"process returned {type(result).__name__}, expected Payload{hint}")
    if branch is not None and before is not None:
        branch.payload = result
        branch.claim(before, stage)
    return result


def _at_stage(stage: str, run: Callable[[], Branch]) -> Branch:
    try:
        return run()
    except HeadraceError as error:
        raise _with_stage(error, stage) from None


def _named(error: BaseException, stage: str, watch: Watch) -> BaseException:
    """The error a caller sees: of the Headrace tree and naming the stage; a foreign cancellation stays as it is."""
    if isinstance(error, asyncio.CancelledError):
        return _with_stage(watch.reason(), stage) if watch.fired else error
    if isinstance(error, HeadraceError):
        return _with_stage(error, stage)
    if isinstance(error, Exception | SystemExit):
        failed = StageFailed(stage, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        failed.__cause__ = error
        return failed
    return error


def _with_stage(error: HeadraceError, stage: str) -> HeadraceError:
    """A copy of `error` whose message begins with the stage, unless it already names one.

    A copy, because one instance may end many requests (a failed batch, a closed model).
    """
    if getattr(error, "stage", None) is not None or str(error).startswith("stage "):
        return error
    twin = type(error).__new__(type(error))
    twin.__dict__.update(error.__dict__)
    twin.args = (f"stage {stage!r}: {error}", *error.args[1:])
    twin.__cause__ = error.__cause__
    twin.__dict__["stage"] = stage
    return twin.with_traceback(error.__traceback__)
