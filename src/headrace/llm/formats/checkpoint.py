"""A model on disk as the loader sees it, whatever the file format: metadata by key and tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.formats.mapped import MappedFile
from headrace.llm.formats.quants import dequantise

__all__ = ["Checkpoint", "MappedCheckpoint", "TensorInfo"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor, its bytes not copied.

    Attributes:
        name: In GGUF's naming ("blk.0.attn_q.weight") for every format.
        type: GGUF's type name ("F32", "F16", "BF16", "Q4_1", ...).
        shape: Row-major, outermost first: a matrix is (rows, cols).
        data: uint8 view of the file's bytes, rows contiguous.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


class Checkpoint(Protocol):
    """An open model file (or files). `metadata` uses GGUF's keys ("general.architecture", "llama.block_count",
    "tokenizer.ggml.tokens") for every format, so that models and tokenizers know one vocabulary of keys."""

    @property
    def path(self) -> str: ...
    @property
    def files(self) -> tuple[str, ...]:
        """The files that hold the tensors, sorted."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def dequantise(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32 in its shape, exactly as the `gguf` package decodes it."""
        ...

    def close(self) -> None:
        """Let the files go; what was taken from `tensors` stays valid while it is held."""
        ...


class MappedCheckpoint:
    """Tensors that are views of mapped files: what every format shares. Nothing is read until it is touched."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.metadata: Mapping[str, Any] = {}
        self.tensors: Mapping[str, TensorInfo] = {}
        self._files: list[MappedFile] = []

    @property
    def files(self) -> tuple[str, ...]:
        """See `Checkpoint.files`."""
        return tuple(sorted(file.path for file in self._files))

    def dequantise(self, name: str) -> npt.NDArray[np.float32]:
        """See `Checkpoint.dequantise`. Raises `LoadFailed` for a name that is not there."""
        if name not in self.tensors:
            raise LoadFailed(f"{self.path}: has no tensor {name!r}")
        tensor = self.tensors[name]
        return dequantise(tensor.data, tensor.type, tensor.shape)

    def close(self) -> None:
        """See `Checkpoint.close`."""
        self.tensors = {}
        for file in self._files:
            file.close()
