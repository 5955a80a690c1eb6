"""Many texts in two objects: the bytes of a vocabulary flow in, out comes a sequence that makes each `str` when asked.

A list of 262,144 strings takes 20 MB and leaves the heap in pieces; this takes their bytes and four more for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

__all__ = ["Texts"]


class Texts(Sequence[str]):
    """Immutable; equal to any sequence of the same texts.

    Attributes:
        blob: All of them in UTF-8, one after the other.
        ends: int32[n + 1], beginning with 0; text i is blob[ends[i] : ends[i + 1]].
    """

    __slots__ = ("_ends", "blob", "ends")

    def __init__(self, blob: bytes, ends: npt.NDArray[np.int32]) -> None:
        self.blob = blob
        self.ends = ends
        self._ends = ends.data

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self.blob[self._ends[index] : self._ends[index + 1]].decode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(self.blob)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self)} texts: {shown}{', …' if len(self) > 3 else ''}>"
