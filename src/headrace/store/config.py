"""Whether a `headrace.toml` and a version belong together: its text and the version's paths flow in, an error out.

The store reads two keys of it, `backend` and `file`; all others are the server's. A text that is no TOML names nothing
here: the server says what is wrong with it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.errors import ConfigError

__all__ = ["check_file", "named_file"]

_SUFFIX = ".onnx"


def named_file(text: bytes) -> str:
    """What `file =` names for an ONNX model, or ""."""
    return _file(_settings(text))


def check_file(text: bytes, paths: Collection[str], path: Path) -> None:
    """Raise `ConfigError` unless the version with these `paths` has the one file that an ONNX model is loaded from.

    Args:
        text: Content of the `headrace.toml`.
        paths: The version's files, relative to its folder.
        path: Where that `headrace.toml` is or will be, for the message.
    """
    settings = _settings(text)
    if settings.get("backend") != "onnx":
        return
    have = ", ".join(sorted(paths)) or "nothing"
    if file := _file(settings):
        if file not in paths:
            raise ConfigError(f'{path}: `file = "{file}"` names a file that the version lacks; it has: {have}')
    elif sum("/" not in one and one.endswith(_SUFFIX) for one in paths) != 1:
        raise ConfigError(f"{path}: `file =` must name the model; expected one *{_SUFFIX}, the version has: {have}")


def _settings(text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _file(settings: dict[str, Any]) -> str:
    file = settings.get("file")
    return str(PurePosixPath(file)) if settings.get("backend") == "onnx" and isinstance(file, str) and file else ""
