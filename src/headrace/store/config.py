"""Whether a `headrace.toml` and a version belong together: its text and the version's paths flow in, an error out.

The store reads two keys of it, `backend` and `file`; all others are the server's. A text that is no TOML names nothing
here: the server says what is wrong with it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.errors import ConfigError

__all__ = ["check_file", "language_model", "named_file"]

_SUFFIXES = {"onnx": ".onnx", "llm": ".gguf"}
_SPLIT = re.compile(r"-(\d{5})-of-\d{5}\.gguf\Z")


def named_file(text: bytes) -> str:
    """What `file =` names for an ONNX or a language model, or ""."""
    return _file(_settings(text))


def language_model(paths: Collection[str]) -> str:
    """Which of these paths is a language model: its one GGUF file (the first of a split one), "." for a folder with
    `config.json` and safetensors, "" if there is none or no telling."""
    found = [path for path in paths if "/" not in path and path.endswith(".gguf")]
    first = [path for path in found if not (part := _SPLIT.search(path)) or int(part[1]) == 1]
    if len(first) == 1:
        return first[0]
    is_folder = not found and "config.json" in paths and any(path.endswith(".safetensors") for path in paths)
    return "." if is_folder else ""


def check_file(text: bytes, paths: Collection[str], path: Path) -> None:
    """Raise `ConfigError` unless the version with these `paths` has the one file that its model is loaded from.

    Args:
        text: Content of the `headrace.toml`.
        paths: The version's files, relative to its folder.
        path: Where that `headrace.toml` is or will be, for the message.
    """
    settings = _settings(text)
    backend = settings.get("backend")
    if backend not in _SUFFIXES:
        return
    suffix, have = _SUFFIXES[backend], ", ".join(sorted(paths)) or "nothing"
    if file := _file(settings):
        if file not in paths:
            raise ConfigError(f'{path}: `file = "{file}"` names a file that the version lacks; it has: {have}')
    elif not (language_model(paths) if backend == "llm" else _is_one(paths, suffix)):
        raise ConfigError(f"{path}: `file =` must name the model; expected one *{suffix}, the version has: {have}")


def _is_one(paths: Collection[str], suffix: str) -> bool:
    return sum("/" not in one and one.endswith(suffix) for one in paths) == 1


def _settings(text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _file(settings: dict[str, Any]) -> str:
    file = settings.get("file")
    is_read = settings.get("backend") in _SUFFIXES
    return str(PurePosixPath(file)) if is_read and isinstance(file, str) and file else ""
