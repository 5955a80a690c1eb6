"""A pipeline: named stages in, something that turns payloads into payloads out, from code or from `headrace.toml`.

    pipeline = Pipeline("shout", [decode, Step(upper, "upper", timeout_s=1.0)])
    answer = await pipeline.run(Payload(text="hi"), Context())     # or, in a script: pipeline(Payload(text="hi"))

A pipeline is itself a stage, so pipelines nest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.core.context import Context
from headrace.errors import ConfigError, Unavailable
from headrace.serve.config import ModelConfig, StageConfig
from headrace.serve.graph import Graph, Step
from headrace.serve.infer import ModelResolver
from headrace.serve.ops import Function, StageFactory
from headrace.serve.plan import Observer, Plan
from headrace.serve.protocol import Payload, Stage, TensorSpec
from headrace.serve.tensors import specs_from_config
from headrace.serve.usercode import public_module
from headrace.serve.workers import Workers

__all__ = ["Pipeline"]

_log = logging.getLogger(__name__)


class Pipeline:
    """Stages compiled into a plan.

    Args:
        name: Names it in errors, metrics and the repository.
        stages: Stages, functions `(payload, ctx) -> payload`, or `Step`s that say name, `after` and time limit.
        workers: Threads for blocking stages, shared with others; default: its own.
        observer: Told of every stage that ran.
        timeout_s: Longest run, whatever the request's own deadline; None for no limit.

    Attributes:
        models: Names of the repository's models that its stages use.
        inputs, outputs: As declared in `headrace.toml`; empty for pipelines that take other than tensors.
    """

    platform = "pipeline"
    version = "1"

    def __init__(
        self,
        name: str,
        stages: Sequence[Stage | Step | Callable[[Payload, Context], Any]],
        *,
        workers: Workers | None = None,
        observer: Observer | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.name = name
        self.config = ModelConfig(stage=[StageConfig(op="python")])
        self.inputs: tuple[TensorSpec, ...] = ()
        self.outputs: tuple[TensorSpec, ...] = ()
        self.metadata: dict[str, str] = {}
        self.timeout_s = timeout_s
        self._graph = Graph(name, _steps(stages))
        self._own_workers = workers is None
        self._workers = workers or Workers()
        self._plan = Plan(name, self._graph, self._workers, observer)
        self._close_stages: list[Callable[[], None]] = []
        self._running = 0
        self._idle: asyncio.Event | None = None
        self._closed = False
        self.models = tuple(sorted({model for step in self._graph.steps for model in getattr(step.stage, "needs", ())}))

    @classmethod
    def from_config(
        cls,
        name: str,
        config: ModelConfig,
        models: ModelResolver,
        directory: Path | None = None,
        *,
        workers: Workers | None = None,
        observer: Observer | None = None,
    ) -> Pipeline:
        """Build the pipeline of a `headrace.toml` that lies in `directory`, where user modules are looked for.

        `models` resolves the models that stages name. Raises `ConfigError` naming the stage and the option.
        """
        factory = StageFactory(directory)
        steps: list[Step] = []
        try:
            for stage_config, stage_name in zip(config.stage, _names(config.stage), strict=True):
                stage = factory.create(stage_config, stage_name)
                after = None if stage_config.after is None else tuple(stage_config.after)
                steps.append(Step(stage, stage_name, after, stage_config.timeout_s))
            pipeline = cls(name, steps, workers=workers, observer=observer, timeout_s=config.timeout_s)
            pipeline.config = config
            pipeline.inputs, pipeline.outputs = specs_from_config(config.inputs), specs_from_config(config.outputs)
            pipeline.bind(models)
        except BaseException:
            _close([step.stage for step in steps])
            factory.close()
            raise
        pipeline._close_stages.append(factory.close)
        return pipeline

    def bind(self, models: ModelResolver) -> None:
        """Give `models` to every stage that asks for it."""
        for step in self._graph.steps:
            bind = getattr(step.stage, "bind", None)
            if bind is not None:
                bind(models)

    @property
    def needs(self) -> tuple[str, ...]:
        """So that a pipeline used as a stage passes its models on."""
        return self.models

    async def run(self, payload: Payload, ctx: Context) -> Payload:
        """Run every stage on one payload, which the pipeline may change.

        Raises what a stage raises, its message naming the stage; `DeadlineExceeded` and `Cancelled` as soon as `ctx`
        ends; `StageFailed` for errors outside the Headrace tree; `Unavailable` once closed.
        """
        if self._closed:
            raise Unavailable(f"pipeline {self.name!r} is closed")
        self._running += 1
        try:
            if self.timeout_s is None:
                return await self._plan.run(payload, ctx)
            expired = f"pipeline {self.name!r}: request {ctx.request_id}: deadline exceeded"
            return await self._plan.run(payload, ctx.child(self.timeout_s), expired)
        finally:
            self._running -= 1
            if self._idle is not None and not self._running:
                self._idle.set()

    async def process(self, payload: Payload, ctx: Context, /) -> Payload:
        return await self.run(payload, ctx)

    def __call__(self, payload: Payload, timeout_s: float | None = None) -> Payload:
        """For scripts: run on an event loop of its own. Inside a coroutine use `await pipeline.run(...)`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(payload, Context(timeout_s=timeout_s)))
        raise ConfigError(f"pipeline {self.name!r}: an event loop is running; use `await pipeline.run(payload, ctx)`")

    def describe(self) -> dict[str, Any]:
        """The graph as JSON-able data: stages in order, what each comes after, and which run together where."""
        stages = [
            {
                "name": step.name,
                "op": _op(step.stage),
                "after": list(self._graph.before[step.name]),
                "timeout_s": step.timeout_s,
            }
            for step in self._graph.steps
        ]
        runs = [{"where": where, "stages": names} for where, names in self._plan.groups]
        return {"name": self.name, "models": list(self.models), "stages": stages, "runs": runs}

    async def close(self, timeout_s: float = 30.0) -> None:
        """Refuse new runs, let those under way finish (at most `timeout_s`), then close the stages. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._running:
            self._idle = asyncio.Event()
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                _log.warning("pipeline %r: %d runs outlast the %g s of draining", self.name, self._running, timeout_s)
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        if self._own_workers:
            self._workers.close()
        _close([step.stage for step in self._graph.steps])
        for close in self._close_stages:
            close()


def _steps(stages: Sequence[Stage | Step | Callable[[Payload, Context], Any]]) -> list[Step]:
    """Steps as given; anything else becomes one, named after its class or function (numbered when not unique)."""
    steps: list[Step] = []
    taken = {item.name for item in stages if isinstance(item, Step)}
    for item in stages:
        if isinstance(item, Step):
            steps.append(item if hasattr(item.stage, "process") else replace(item, stage=_stage(item.stage)))
        else:
            stage = _stage(item)
            base = getattr(item, "name", None) or getattr(item, "__name__", None) or type(item).__name__.lower()
            name = _unique(str(base), taken)
            taken.add(name)
            steps.append(Step(stage, name))
    return steps


def _stage(item: Any) -> Stage:
    if hasattr(item, "process"):
        stage: Stage = item
        return stage
    if callable(item):
        return Function(item)
    raise ConfigError(f"expected a stage or a function of (payload, ctx), got {type(item).__name__}")


def _names(stages: Sequence[StageConfig]) -> list[str]:
    """The names of configured stages: as written, else the op's name, numbered when it is used again."""
    taken = {stage.name for stage in stages if stage.name}
    names: list[str] = []
    for stage in stages:
        name = stage.name or _unique(stage.op, taken)
        taken.add(name)
        names.append(name)
    return names


def _unique(base: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    return next(name for i in range(1, len(taken) + 2) if (name := base if i == 1 else f"{base}-{i}") not in taken)


def _op(stage: Stage) -> str:
    target: Any = stage.process if isinstance(stage, Function) else type(stage)
    target = getattr(target, "func", target)  # a function whose options are bound
    return f"{public_module(target.__module__)}:{target.__qualname__}"


def _close(stages: Sequence[Stage]) -> None:
    """Call the optional `close` of each stage; one that fails does not keep the others open."""
    for stage in stages:
        close = getattr(stage, "close", None)
        if close is None or isinstance(stage, Pipeline):
            continue
        try:
            close()
        except Exception:
            _log.exception("closing stage %s", _op(stage))
