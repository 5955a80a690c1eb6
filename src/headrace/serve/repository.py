"""The served repository: a folder of models and pipelines in, loaded ones by name out, changed while requests run.

Files are chosen and verified through `headrace.store`; a new version is loaded and warmed beside the old one, takes
its place in one assignment, and the old one finishes what it accepted before it is freed. A load that fails leaves what
was served before, and its reason in the index. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from headrace.core.logs import fields
from headrace.core.telemetry import Registry, Tracer
from headrace.errors import (
    ConfigError,
    Conflict,
    HeadraceError,
    InvalidInput,
    LoadFailed,
    MissingExtra,
    NotFound,
    Unavailable,
)
from headrace.serve import backends
from headrace.serve.config import ModelConfig, load_config
from headrace.serve.index import Entry, IndexEntry
from headrace.serve.metrics import ServeMetrics
from headrace.serve.model import Model
from headrace.serve.observe import StageObserver
from headrace.serve.pipeline import Pipeline
from headrace.serve.versions import Chosen, choose_version, names_in
from headrace.serve.workers import Workers
from headrace.store.names import CONFIG

__all__ = ["Repository"]

_log = logging.getLogger(__name__)

UNLOADED = "unloaded"

LOAD_PATIENCE_S = 10.0
"""How long the start waits for one model before it goes on to the next."""


class Repository:
    """Loads, reloads, unloads and finds what a folder holds.

    Args:
        root: The folder with one folder per model or pipeline.
        metrics: Families to count into; default: a registry of its own.
        tracer: Records a span per stage of traced requests.
        workers: Threads for blocking stages; default: one per CPU, closed with the repository.
        drain_timeout_s: How long a replaced or unloaded version may take to finish what it accepted.
        plugins: Backends beside those of this plane.
    """

    def __init__(
        self,
        root: Path,
        metrics: ServeMetrics | None = None,
        *,
        tracer: Tracer | None = None,
        workers: Workers | None = None,
        drain_timeout_s: float = 30.0,
        plugins: backends.Plugins | None = None,
    ) -> None:
        self.root = root
        self.metrics = metrics or ServeMetrics(Registry())
        self._tracer = tracer
        self._observer = StageObserver(self.metrics.registry, tracer)
        self._workers = workers or Workers()
        self._own_workers = workers is None
        self._drain_timeout_s = drain_timeout_s
        self._plugins = plugins
        self._entries: dict[str, Entry] = {}
        self._live: dict[str, Model | Pipeline] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started = False
        self._closed = False
        abandoned = self.metrics.registry.gauge(
            "headrace_stage_threads_abandoned", "Threads held by stages that nobody waits for any more"
        )
        abandoned.set_function(lambda: float(self._workers.abandoned))

    # -- finding -------------------------------------------------------------------------------------------------

    def get(self, name: str, version: str | None = None) -> Model | Pipeline:
        """The served model or pipeline. Raises `NotFound` saying what there is, or `Unavailable` with the reason."""
        served = self._live.get(name)
        if served is not None and (not version or version == served.version):
            return served
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"no model or pipeline {name!r}; there are: {', '.join(sorted(self._entries)) or 'none'}")
        if served is not None:
            raise NotFound(f"{name!r} has no version {version!r} loaded; loaded is {served.version!r}")
        if entry.reason == UNLOADED:
            raise NotFound(f"{name!r} is unloaded; load it again to use it")
        raise Unavailable(f"{name!r} is {entry.state.lower()}{': ' + entry.reason if entry.reason else ''}")

    def models(self) -> list[Model]:
        """Models that are ready, by name."""
        return [served for _, served in sorted(self._live.items()) if isinstance(served, Model)]

    def pipelines(self) -> list[Pipeline]:
        """Pipelines that are ready, by name."""
        return [served for _, served in sorted(self._live.items()) if isinstance(served, Pipeline)]

    def index(self) -> list[IndexEntry]:
        """Everything known, by name: what is served, what is loading, what failed and why."""
        return [line for _, entry in sorted(self._entries.items()) for line in entry.lines()]

    def not_ready(self) -> str:
        """Why the repository cannot serve yet, or "". A model that failed to load does not make the others wait."""
        if self._closed:
            return "closed"
        return "" if self._started else "loading"

    # -- changing ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load everything in the folder: models, then pipelines. Failures are logged and stay in the index."""
        names = await asyncio.to_thread(names_in, self.root)
        kinds = {name: await asyncio.to_thread(self._is_pipeline, name) for name in names}
        for name in names:
            self._entries.setdefault(name, Entry(name)).begin()
        for name in sorted(names, key=lambda name: kinds[name]):
            if self._closed:
                return
            # One that takes long, or for ever, loads on beside the others; pipelines that wait for it follow it.
            await asyncio.wait({self._spawn(self._load(name, retry=False))}, timeout=LOAD_PATIENCE_S)
        self._started = True

    async def load(self, name: str) -> None:
        """Load `name`, or reload it: its current version and configuration replace what is served, if they load.

        A pipeline's missing models are loaded first; pipelines that waited for this model are loaded after it. Raises
        `NotFound`, `ConfigError`, `IntegrityError`, `LoadFailed`; a caller that is cancelled does not stop the load.
        """
        await self._shielded(self._load(name, retry=True))

    async def _load(self, name: str, *, retry: bool) -> None:
        await self._change(name, retry=retry)
        for entry in list(self._entries.values()):
            if name in entry.waits_for and entry.served is None:
                with contextlib.suppress(HeadraceError):  # logged where it was found
                    await self._change(entry.name, retry=False)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop serving `name` and free it once its requests are answered. Does nothing if it is not loaded.

        Raises `NotFound`, and `Conflict` while a pipeline needs the model unless `unload_dependents`.
        """
        if name not in self._entries:
            self.get(name)
        await self._shielded(self._unload(name, unload_dependents))

    async def close(self) -> None:
        """Stop everything: pipelines first, then models; what they accepted is finished. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for entry in list(self._entries.values()):
            async with entry.lock:  # a load under way ends first; no other begins
                pass
        await asyncio.gather(*(self._stop(entry) for entry in self._entries.values() if entry.is_pipeline))
        await asyncio.gather(*(self._stop(entry) for entry in self._entries.values() if not entry.is_pipeline))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._own_workers:
            await asyncio.to_thread(self._workers.close)

    async def _stop(self, entry: Entry, reason: str = "closed") -> None:
        served = self._live.pop(entry.name, None)
        entry.stop(reason)
        if served is not None:
            await served.close(self._drain_timeout_s)

    async def _unload(self, name: str, unload_dependents: bool) -> None:
        for dependent in self._dependents(name):
            if not unload_dependents:
                break
            await self._unload(dependent, False)
        entry = self._entries[name]
        async with entry.lock:
            if dependents := self._dependents(name):
                needed = ", ".join(map(repr, dependents))
                raise Conflict(f"model {name!r} is needed by {needed}; unload them first, or ask for unload_dependents")
            served = self._live.get(name)
            await self._stop(entry, UNLOADED)
            if served is not None:
                _log.info("%s: unloaded version %s", name, served.version, extra=fields(model=name))

    async def _change(self, name: str, *, retry: bool) -> None:
        if name not in self._entries and name not in await asyncio.to_thread(names_in, self.root):
            self.get(name)
        entry = self._entries.setdefault(name, Entry(name))
        async with entry.lock:
            if self._closed:
                raise Unavailable("the repository is closed")
            entry.begin()
            chosen = Chosen("", self.root / name)
            began_s = time.perf_counter()
            try:
                config = await asyncio.to_thread(load_config, self.root / name / CONFIG)
                chosen = await asyncio.to_thread(choose_version, self.root, name, pipeline=bool(config.stage))
                await asyncio.to_thread(chosen.check)
                if config.stage:
                    new: Model | Pipeline = await self._pipeline(entry, config, chosen, retry)
                else:
                    with _naming(self.root / name / CONFIG):
                        backend = await asyncio.to_thread(backends.create, config, chosen.directory, self._plugins)
                    new = await Model.load(name, chosen.version, backend, config, self.metrics, self._tracer)
            except Exception as error:
                known_error = error if isinstance(error, HeadraceError) else _unexpected(name, error)
                entry.fail(chosen.version, known_error)
                _log_failure(name, known_error)
                if known_error is error:
                    raise
                raise known_error from error
            old = self._live.get(name)
            self._live[name] = new
            entry.serve(new, chosen.remark)
            took_s, remark = time.perf_counter() - began_s, f"; {chosen.remark}" if chosen.remark else ""
            _log.info("%s: loaded version %s in %.2f s%s", name, new.version, took_s, remark, extra=fields(model=name))
        if old is not None:
            self._spawn(old.close(self._drain_timeout_s))

    async def _pipeline(self, entry: Entry, config: ModelConfig, chosen: Chosen, retry: bool) -> Pipeline:
        with _naming(self.root / entry.name / CONFIG):
            pipeline = await asyncio.to_thread(
                Pipeline.from_config,
                entry.name,
                config,
                self._model,
                chosen.directory,
                workers=self._workers,
                observer=self._observer,
            )
        pipeline.version = chosen.version
        try:
            for model in pipeline.models:
                if retry and model not in self._live and not await asyncio.to_thread(self._is_pipeline, model):
                    with contextlib.suppress(HeadraceError):  # said below, with the pipeline's name
                        await self._change(model, retry=False)
            # No await between this check and the pipeline's first appearance: an unload cannot slip in between.
            for model in pipeline.models:
                self._model(model)
        except HeadraceError as error:
            entry.waits_for = pipeline.models
            await pipeline.close(0)
            raise Unavailable(f"pipeline {entry.name!r} needs a model: {error}") from None
        return pipeline

    def _model(self, name: str) -> Model:
        served = self.get(name)
        if not isinstance(served, Model):
            raise InvalidInput(f"{name!r} is a pipeline; a stage can only run a model")
        return served

    def _dependents(self, model: str) -> list[str]:
        return [pipeline.name for pipeline in self.pipelines() if model in pipeline.models]

    def _is_pipeline(self, name: str) -> bool:
        with contextlib.suppress(HeadraceError):
            return bool(load_config(self.root / name / CONFIG).stage)
        return False

    async def _shielded(self, change: Coroutine[Any, Any, None]) -> None:
        """Await a change that goes on to its end even if the caller is cancelled: half a load would leak."""
        await asyncio.shield(self._spawn(change))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("repository change: %s", error)


@contextlib.contextmanager
def _naming(file: Path) -> Iterator[None]:
    """What is wrong with a configuration is said with the file that holds it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error.__cause__


def _log_failure(name: str, error: HeadraceError) -> None:
    """One line, and below it the trace of what user code or a library raised; errors of our own say enough."""
    cause = error.__cause__
    trace = None if isinstance(error, MissingExtra) or isinstance(cause, HeadraceError) else cause
    _log.error("%s: load failed: %s", name, error, exc_info=trace, extra=fields(model=name))


def _unexpected(name: str, error: Exception) -> LoadFailed:
    failed = LoadFailed(f"{name!r}: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
