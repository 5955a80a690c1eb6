"""Which names the store accepts: in flow strings from a user, a manifest or an archive, out come the same or an error.

Everything that becomes part of a path passes through here first, so no other module needs to think about `..`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from headrace.errors import InvalidInput

__all__ = [
    "CONFIG",
    "CURRENT",
    "MANIFEST",
    "check_model",
    "check_path",
    "check_version",
    "safe_path",
    "split_reference",
    "suggest_model",
]

CONFIG = "headrace.toml"
CURRENT = "current"
MANIFEST = "manifest.json"
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_RESERVED_VERSIONS = (CURRENT, CONFIG)
_LONGEST_PATH = 1024
_LONGEST_PART = 255


def check_model(name: str) -> str:
    """Return `name` if it may name a model; raises `InvalidInput`."""
    if not _MODEL.fullmatch(name):
        raise InvalidInput(f"model name {name!r}: expected 1 to 64 of a-z 0-9 . _ - beginning with a letter or digit")
    return name


def check_version(version: str) -> str:
    """Return `version` if it may name a version folder; raises `InvalidInput`."""
    if not _VERSION.fullmatch(version) or version in _RESERVED_VERSIONS:
        raise InvalidInput(
            f"version {version!r}: expected 1 to 64 of A-Z a-z 0-9 . _ + - beginning with a letter or digit, "
            f"and none of {', '.join(_RESERVED_VERSIONS)}"
        )
    return version


def split_reference(reference: str) -> tuple[str, str]:
    """Split `name`, `name:version` or `name@version`; the version is "" when none is given."""
    name, separator, version = reference.partition("@" if "@" in reference else ":")
    return check_model(name), check_version(version) if separator else ""


def safe_path(path: str) -> str:
    """Why `path` may not name a file inside a version folder, or "" if it may.

    Allowed are relative POSIX paths without empty, `.` or `..` parts, backslashes or control characters.
    """
    if not path or path.startswith("/"):
        return "it is empty or absolute"
    if "\\" in path or any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "it holds a backslash or a control character"
    try:
        parts = path.encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if any(part in (b"", b".", b"..") for part in parts):
        return "it holds an empty, '.' or '..' part"
    if len(path) > _LONGEST_PATH or any(len(part) > _LONGEST_PART for part in parts):
        return f"it is longer than {_LONGEST_PATH} characters, or a part of it than {_LONGEST_PART} bytes"
    return "" if path != MANIFEST else "that name is kept for the manifest"


def check_path(path: str, where: str) -> str:
    """Return `path` if it is safe inside a version folder; raises `InvalidInput` saying where it came from."""
    if reason := safe_path(path):
        raise InvalidInput(f"{where}: path {path!r} is refused: {reason}")
    return path


def suggest_model(path: str, parent: str) -> str:
    """A model name made from a file name (`parent` when the stem says nothing, as in `model.onnx`)."""
    stem = PurePosixPath(path).stem if path else ""
    chosen = parent if stem.lower() in ("", "model") else stem
    return check_model(re.sub(r"[^a-z0-9._-]+", "-", chosen.lower()).strip("._-")[:64])
