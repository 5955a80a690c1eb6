"""Training that can go on where it was: arrays and facts in, one file; out of the file, the same bits or an error.

The file is a safetensors file, so that other tools can read the arrays; its metadata holds the facts as JSON and a
digest of the arrays. It is written whole or not at all: a full disk leaves the previous one as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.errors import IntegrityError, LoadFailed, Unavailable
from headrace.store.durable import replace_file

__all__ = ["FORMAT", "Checkpoint", "load_checkpoint", "save_checkpoint"]

FORMAT = "headrace-rl 1"
"""What a file of ours says of itself; another number is another layout."""


@dataclass(frozen=True)
class Checkpoint:
    """`arrays` by name, and `facts` as JSON knows them."""

    arrays: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write `path`, replacing what was there. Raises `Unavailable` where it cannot be written; what was there stays."""
    numpy_format = require("safetensors.numpy", "rl")
    arrays = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    facts = json.dumps(checkpoint.facts)
    content = numpy_format.save(arrays, metadata={"format": FORMAT, "facts": facts, "sha256": _digest(arrays, facts)})
    try:
        replace_file(path, content)
    except OSError as error:
        raise Unavailable(
            f"checkpoint {path}: cannot be written: {error.strerror}; the one before it is kept"
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read `path`. Raises `LoadFailed` for a file that is missing or no checkpoint of ours, `IntegrityError` for one
    that is damaged."""
    numpy_format = require("safetensors", "rl")
    try:
        with numpy_format.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise LoadFailed(f"{path}: expected a checkpoint ({FORMAT}), it says {metadata.get('format')!r}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except OSError as error:
        raise LoadFailed(f"{path}: cannot be read: {error.strerror or error}") from error
    except numpy_format.SafetensorError as error:
        raise LoadFailed(f"{path}: no checkpoint, or one that was cut: {error}") from error
    facts = metadata.get("facts", "")
    if _digest(arrays, facts) != metadata.get("sha256"):
        raise IntegrityError(f"{path}: its content is not what was written")
    return Checkpoint(arrays, json.loads(facts))


def _digest(arrays: Mapping[str, npt.NDArray[Any]], facts: str) -> str:
    """SHA-256 over the facts, and the name, type, shape and bytes of each array in order of names."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
