"""`headrace.toml`: how a model or pipeline in the repository is served. Strict: an unknown key is an error naming it.

models/<name>/headrace.toml sits beside the version folders models/<name>/<version>/. It declares either a model
(`backend = …`) or a pipeline (`[[stage]]` …), never both.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.errors import ConfigError
from headrace.serve.explain import explain

__all__ = ["BatchingConfig", "ModelConfig", "RuntimeConfig", "StageConfig", "TensorConfig", "load_config"]

Positive = Annotated[int, Meta(ge=1)]
ThreadCount = Annotated[int, Meta(ge=1, le=1024)]
PositiveSeconds = Annotated[float, Meta(gt=0)]

LLM_TIMEOUT_S = 600.0
"""`timeout_s` of a language model that states none: a long answer takes minutes."""


class BatchingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How queued rows are joined into one call of the backend."""

    enabled: bool = True
    max_batch: Positive = 8
    window_ms: Annotated[float, Meta(ge=0)] = 50.0
    max_queue: Positive = 1024


class RuntimeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the backend may use.

    `execution`: "inline" runs on the event loop, "thread" on a worker, "auto" (default) picks inline only while the
    measured run is shorter than the hop to a thread costs.
    """

    threads: ThreadCount = 1
    instances: ThreadCount = 1
    execution: Literal["auto", "inline", "thread"] = "auto"


class TensorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A declared tensor, for backends that cannot describe themselves (plain Python)."""

    name: str
    datatype: str
    shape: list[int]


class StageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"options": "with"}):
    """One stage: `op` is a registered name ("image.decode") or "package.module:Class"; `with` are its options.

    `after` names the stages whose payload it takes; default: the stage written before it.
    """

    op: str
    name: str = ""
    after: list[str] | None = None
    timeout_s: PositiveSeconds | None = None
    options: dict[str, Any] = {}


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    description: str = ""
    backend: Literal["onnx", "python", "llm", ""] = ""
    file: str = ""
    entry: str = ""
    """For `backend = "python"`: "module:attribute", the module lying in the version folder."""
    timeout_s: PositiveSeconds = 30.0
    load_timeout_s: PositiveSeconds = 600.0
    max_rows: Positive = 4096
    allow_nan: bool = True
    batching: BatchingConfig = BatchingConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    llm: dict[str, Any] = {}
    """For `backend = "llm"`: checked by whoever loads it."""
    inputs: list[TensorConfig] = []
    outputs: list[TensorConfig] = []
    consumes: Literal["image", "audio", "text", "bytes", ""] = ""
    stage: list[StageConfig] = []

    def __post_init__(self) -> None:
        if bool(self.backend) == bool(self.stage):
            raise ValueError("declare either `backend` (a model) or `[[stage]]` (a pipeline)")
        if self.llm and self.backend != "llm":
            raise ValueError('the table `[llm]` goes with `backend = "llm"`')


def load_config(path: Path) -> ModelConfig:
    """Read and check one `headrace.toml`. Raises `ConfigError` naming the file and the key."""
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ConfigError(f"{path}: expected a regular file")
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
        if settings.get("backend") == "llm":
            settings.setdefault("timeout_s", LLM_TIMEOUT_S)
        return msgspec.convert(settings, ModelConfig)
    except FileNotFoundError:
        raise ConfigError(f'{path.parent}: no {path.name}; for an ONNX model one line does: backend = "onnx"') from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, ModelConfig)}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path}: {error}") from None
