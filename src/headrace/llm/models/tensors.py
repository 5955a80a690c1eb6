"""Every tensor of a checkpoint is asked for once: in flow names and shapes a definition needs, out come `Weight`s.

What a definition asks for must be there in that shape, and what is there must be asked for: a model is never run with
a part of it missing, misread or left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.config import ModelConfig
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.llm.trace import Weight

__all__ = ["Tensors"]

_IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")
"""Written by old converters; holds frequencies that follow from the metadata."""


class Tensors:
    """Hands out the tensors of `checkpoint`; raises `LoadFailed` naming the tensor, expectation and find."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint) -> None:
        self._config, self._checkpoint = config, checkpoint
        self._used: set[str] = set()

    def matrix(self, name: str, rows: int, cols: int) -> Weight:
        """A whole matrix, [rows, cols]."""
        self._take(name, (rows, cols))
        return Weight(name, rows, cols)

    def split(self, name: str, rows: Sequence[int], cols: int) -> list[Weight]:
        """A matrix that holds several below each other, of that many rows each."""
        self._take(name, (sum(rows), cols))
        firsts = np.cumsum([0, *rows])
        return [Weight(name, n, cols, int(first)) for n, first in zip(rows, firsts, strict=False)]

    def vector(self, name: str, size: int) -> str:
        """The name of a vector of that many numbers."""
        self._take(name, (size,))
        return name

    def optional(self, name: str, size: int) -> str:
        """The same, or "" where there is none."""
        return self.vector(name, size) if name in self._checkpoint.tensors else ""

    def head(self) -> Weight:
        """The output matrix; the embedding where the file has none of its own."""
        own = "output.weight" in self._checkpoint.tensors
        return self.matrix("output.weight" if own else "token_embd.weight", self._config.vocab_size, self._config.width)

    def values(self, name: str, size: int) -> npt.NDArray[np.float32]:
        """What a vector of divisors holds; raises where they are not finite and positive."""
        self._take(name, (size,))
        values = self._checkpoint.dequantise(name)
        if not (np.isfinite(values).all() and (values > 0).all()):
            self._fail(f"tensor {name}: expected finite numbers above 0")
        return values

    def optional_values(self, name: str, size: int) -> npt.NDArray[np.float32] | None:
        """The same, or None where there is none."""
        return self.values(name, size) if name in self._checkpoint.tensors else None

    def finish(self) -> None:
        """Raise where tensors are left that no one asked for."""
        left = sorted(n for n in self._checkpoint.tensors if n not in self._used and not _IGNORED.fullmatch(n))
        if left:
            shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
            config = self._config
            self._fail(
                f"tensors that a {config.architecture} model of {config.n_layers} layers does not know: {shown}; "
                "leaving them out would change the model"
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> None:
        info = self._checkpoint.tensors.get(name)
        if info is None:
            self._fail(f"no tensor {name}; a {self._config.architecture} model needs it, of shape {list(shape)}")
        if info.shape != shape:
            self._fail(f"tensor {name}: expected shape {list(shape)} by the metadata, got {list(info.shape)}")
        self._used.add(name)

    def _fail(self, message: str) -> NoReturn:
        raise LoadFailed(f"{self._checkpoint.path}: {message}")
