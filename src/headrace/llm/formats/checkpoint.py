"""A model on disk as the loader sees it, whatever the file format: metadata by key and tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Checkpoint", "TensorInfo"]


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
        """Unmap the files; views handed out before must not be used after."""
        ...
