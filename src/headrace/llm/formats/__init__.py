"""Model files: a path in, an open `Checkpoint` out, read without copying, whichever of the known formats it is."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import LoadFailed
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.llm.formats.gguf import MAGIC, GgufCheckpoint
from headrace.llm.formats.huggingface import HuggingFaceCheckpoint
from headrace.llm.formats.mapped import MappedFile
from headrace.llm.formats.safetensors import is_safetensors

__all__ = ["open_checkpoint"]

_EXPECTED = "expected a GGUF file, or a folder with config.json and *.safetensors"

# What people try that is no language model, by how it begins.
_OTHERS = (
    (b"PK\x03\x04", "a ZIP archive (a PyTorch checkpoint?)"),
    (b"\x80\x02", "a pickle (an old PyTorch checkpoint?)"),
    (b"ggjt", "a GGML file from before GGUF"),
    (b"tjgg", "a GGML file from before GGUF"),
    (b"lmgg", "a GGML file from before GGUF"),
    (b"\x08\x03\x12", "an ONNX model"),
    (b"\x1f\x8b", "a gzip archive"),
)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file (any part of a split one), a folder in Hugging Face's layout, or a file of such a folder.

    The content decides, not the name. Raises `LoadFailed` saying what the path is instead, or what is wrong with it.
    """
    path = Path(path)
    if os.path.isdir(path):  # which is False, not an error, where one may not look
        return _open_folder(path)
    file = MappedFile(path)
    start = bytes(file.view[:16])
    file.close()
    if start[:4] == MAGIC:
        return GgufCheckpoint(path)
    if path.name == "config.json":
        return _open_folder(path.parent)
    if is_safetensors(start):
        if os.path.exists(path.parent / "config.json"):
            return _open_folder(path.parent)
        raise LoadFailed(f"{path}: is a safetensors file without a config.json beside it")
    is_known = next((what for magic, what in _OTHERS if start.startswith(magic)), "")
    if not is_known and path.suffix == ".onnx":
        is_known = "an ONNX model"
    raise LoadFailed(f"{path}: {_EXPECTED}; this is {is_known or f'a file that begins with {start[:8]!r}'}")


def _open_folder(folder: Path) -> Checkpoint:
    if os.path.exists(folder / "config.json"):
        return HuggingFaceCheckpoint(folder)
    try:
        files = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise LoadFailed(f"{folder}: cannot be read: {error.strerror}") from error
    if ggufs := [name for name in files if name.endswith(".gguf")]:
        raise LoadFailed(f"{folder}: {_EXPECTED}; name one of its files: {', '.join(ggufs[:10])}")
    raise LoadFailed(f"{folder}: {_EXPECTED}; it holds {', '.join(files[:10]) or 'nothing'}")
