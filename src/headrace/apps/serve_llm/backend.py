"""A language model as a backend of the server: a GGUF file or Hugging Face folder in, an engine behind `answer` out.

The same engine serves the text routes, which take it from `engine`. It joins all requests by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.apps.serve_llm.config import LlmConfig, llm_config
from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.sampling import one_answer
from headrace.core.context import Context
from headrace.core.telemetry import Registry, Tracer
from headrace.errors import ConfigError, InvalidInput, LoadFailed
from headrace.llm.params import SamplingParams
from headrace.serve.config import ModelConfig
from headrace.serve.protocol import Backend, Tensors, TensorSpec
from headrace.store.config import language_model

if TYPE_CHECKING:
    from headrace.llm.engine import Engine
    from headrace.llm.generation import Generation
    from headrace.llm.metrics import LlmMetrics

__all__ = ["LlmBackend", "LlmPlugin"]

_STRINGS = np.dtype(object)


class LlmPlugin:
    """Builds the backends of one server: `Repository(…, plugins={"llm": LlmPlugin(registry)})`.

    Their engines count into one set of metric families, made when the first of them loads.
    """

    def __init__(self, registry: Registry | None = None, tracer: Tracer | None = None) -> None:
        self._registry = registry
        self._tracer = tracer
        self._metrics: LlmMetrics | None = None

    def __call__(self, config: ModelConfig, version_dir: Path) -> Backend:
        """The backend of `config` for the files in `version_dir`. Raises `ConfigError` naming the key at fault."""
        name = version_dir.absolute().parent.name
        return LlmBackend(_file(config, version_dir), name, llm_config(config.llm), self)

    def metrics(self) -> LlmMetrics | None:
        """The families, or None where nobody reads them. The engine's code is imported here at the earliest."""
        if self._metrics is None and self._registry is not None:
            from headrace.llm.metrics import LlmMetrics

            self._metrics = LlmMetrics(self._registry)
        return self._metrics

    @property
    def tracer(self) -> Tracer | None:
        return self._tracer


class LlmBackend:
    """Implements `serve.protocol.ConcurrentBackend`: `text_input` strings of any shape in, `text_output` of the same
    shape out. They are continued as they are, without a chat template, by the `sampling` of the configuration and the
    request's `parameters`.

    Attributes:
        sampling: What is used where a request states nothing.
        max_priority: The highest that a client may ask for.
        loaded_at_s: `time.time()` of the load.
    """

    inputs: tuple[TensorSpec, ...] = (TensorSpec("text_input", _STRINGS, ()),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("text_output", _STRINGS, ()),)
    thread_safe = True

    def __init__(self, path: Path, name: str, config: LlmConfig, plugin: LlmPlugin) -> None:
        self.sampling: SamplingParams = config.sampling
        self.max_priority = config.max_priority
        self.loaded_at_s = 0.0
        self.metadata: dict[str, str] = {}
        self._path = path
        self._name = name
        self._config = config
        self._plugin = plugin
        self._engine: Engine | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def engine(self) -> Engine:
        """The loaded engine, open until `drain`."""
        if self._engine is None:
            raise LoadFailed(f"model {self._name!r} is not loaded")
        return self._engine

    def load(self) -> None:
        from headrace.llm.engine import Engine

        metrics, tracer = self._plugin.metrics(), self._plugin.tracer
        self._engine = Engine.load(
            self._path, name=self._name, metrics=metrics, tracer=tracer, **self._config.engine_options()
        )
        self.loaded_at_s = time.time()
        self.metadata = {"file": self._path.name, "max_context": str(self._engine.settings.max_context)}

    def warm(self) -> None:
        """One token, so that the first request finds threads awake and weights in memory."""
        self.engine.generate([0], SamplingParams(max_tokens=1, ignore_eos=True)).collect()

    def infer(self, tensors: Tensors) -> Tensors:
        texts = _texts(tensors["text_input"])
        generations = [self.engine.generate(text, self.sampling) for text in texts]
        return _output(tensors, [generation.collect()[0].text for generation in generations])

    async def answer(self, tensors: Tensors, ctx: Context, parameters: Mapping[str, Any] = {}) -> Tensors:
        """Raises `BadRequest` naming the parameter that is unknown or wrong."""
        if ctx.priority > self.max_priority:
            raise BadRequest("parameters.priority", f"this model takes none above {self.max_priority} (`max_priority`)")
        texts = _texts(tensors["text_input"])
        sampling, truncate = one_answer(self.sampling, parameters)

        def begin() -> list[Generation]:
            return [self.engine.generate(text, sampling, ctx=ctx, truncate=truncate) for text in texts]

        with self.working():
            generations = await asyncio.to_thread(begin)  # reading a long text or a grammar takes its time
            try:
                return _output(tensors, [(await generation.acollect())[0].text for generation in generations])
            finally:
                for generation in generations:
                    generation.cancel()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around every use of the engine on the event loop: `settle` waits for its end."""
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def settle(self) -> None:
        await self._idle.wait()

    def drain(self) -> None:
        """End what has outlasted the draining."""
        if self._engine is not None:
            self._engine.close()

    def free(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def _file(config: ModelConfig, directory: Path) -> Path:
    """`file` of the configuration inside the version folder, else the one language model there."""
    if config.file:
        parts = PurePosixPath(config.file)
        if parts.is_absolute() or ".." in parts.parts:
            raise ConfigError(f"`file` must lie inside the version folder, got {config.file!r}")
        return directory / parts
    paths = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    found = language_model(paths)
    if not found:
        have = ", ".join(paths[:10]) or "none"
        raise ConfigError(
            f"{directory}: name the model in `file`; expected one *.gguf, or config.json and safetensors, found {have}"
        )
    return directory / found


def _texts(array: Any) -> list[str]:
    return [_text(item) for item in array.ravel().tolist()]


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, bytes):
        raise InvalidInput(f"tensor 'text_input': expected strings, got {type(item).__name__}")
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"tensor 'text_input': expected UTF-8, got byte 0x{item[error.start]:02x} at {error.start}"
        ) from None


def _output(tensors: Tensors, texts: list[str]) -> Tensors:
    out = np.empty(tensors["text_input"].shape, object)
    out.reshape(-1)[:] = [text.encode() for text in texts]
    return {"text_output": out}
