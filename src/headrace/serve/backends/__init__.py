"""Backends by name: a `ModelConfig` and its version folder in, an unloaded `Backend` out.

Backends of other planes are given by whoever starts the server, as `Plugins`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from headrace.errors import ConfigError
from headrace.serve.config import ModelConfig
from headrace.serve.protocol import Backend
from headrace.serve.tensors import specs_from_config

__all__ = ["Plugins", "create"]

Plugins: TypeAlias = Mapping[str, Callable[[ModelConfig, Path], Backend]]
"""`backend =` to what builds it, as `create` does; raises `ConfigError` naming the key at fault."""


def create(config: ModelConfig, version_dir: Path, plugins: Plugins | None = None) -> Backend:
    """Build the backend that `config` names, for the files in `version_dir`; nothing is loaded yet.

    The model's name, for messages, is the folder above `version_dir`. Raises `ConfigError` naming the key at fault.
    """
    name = version_dir.absolute().parent.name
    if config.backend == "onnx":
        from headrace.serve.backends.onnx import OnnxBackend

        return OnnxBackend(_model_file(config, version_dir, ".onnx"), name, config.runtime.threads)
    if config.backend == "python":
        from headrace.serve.backends.python import PythonBackend

        if not config.inputs or not config.outputs:
            raise ConfigError(f"model {name!r}: a Python model declares its tensors in [[inputs]] and [[outputs]]")
        inputs, outputs = specs_from_config(config.inputs), specs_from_config(config.outputs)
        if not config.entry:
            raise ConfigError(f'model {name!r}: `entry` is missing; expected "module:attribute"')
        return PythonBackend(version_dir, config.entry, inputs, outputs, name)
    if plugins and config.backend in plugins:
        return plugins[config.backend](config, version_dir)
    known = ", ".join(f'"{backend}"' for backend in ("onnx", "python", *(plugins or {})))
    raise ConfigError(f"model {name!r}: `backend` is {config.backend!r}; here it can be {known}")


def _model_file(config: ModelConfig, directory: Path, suffix: str) -> Path:
    """`file` of the config inside the version folder, or the one file there with the suffix."""
    if config.file:
        parts = PurePosixPath(config.file)
        if parts.is_absolute() or ".." in parts.parts:
            raise ConfigError(f"`file` must lie inside the version folder, got {config.file!r}")
        return directory / parts
    found = sorted(directory.glob(f"*{suffix}"))
    if len(found) != 1:
        have = ", ".join(path.name for path in found) or "none"
        raise ConfigError(f"{directory}: name the model in `file`; expected one *{suffix}, found {have}")
    return found[0]
