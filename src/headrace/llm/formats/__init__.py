"""Model files: a path in, an open `Checkpoint` out, read without copying, whichever of the known formats it is."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import LoadFailed
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.llm.formats.gguf import GgufCheckpoint

__all__ = ["open_checkpoint"]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file (any part of a split one).

    Raises `LoadFailed` saying what the path is instead, or what is wrong with it.
    """
    path = Path(path)
    if path.is_dir():
        raise LoadFailed(f"{path}: expected a model file")
    return GgufCheckpoint(path)
