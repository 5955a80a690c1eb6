"""What a replay memory holds and gives: the fields of a transition, a batch of them, counts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import IntegrityError, InvalidInput

__all__ = ["Batch", "Field", "Integrity", "ReplayStats", "fields_of", "note_of"]


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a transition: `shape` and `dtype` (bool, integer, float or complex) of a single row's value."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: DTypeLike = np.float32

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise InvalidInput(f"field {self.name!r}: {self.dtype!r} is no dtype") from error
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if not self.name.isidentifier():
            raise InvalidInput(f"field: expected a Python identifier as its name, got {self.name!r}")
        if dtype.kind not in "biufc" or not dtype.isnative:
            raise InvalidInput(f"field {self.name!r}: expected numbers of this machine, got {dtype}")
        if any(n < 1 for n in self.shape):
            raise InvalidInput(f"field {self.name!r}: every length of its shape must be at least 1, got {self.shape}")

    @property
    def size_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape))

    def zeros(self, rows: int) -> NDArray[Any]:
        return np.zeros((rows, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows drawn from a buffer. `batch["obs"]` is an array [n, *shape].

    `slots` and `sequences` (int64[n]) say which rows: a sequence is a row's own for ever, and -1 where `gather` found
    no row. `weights` (float32[n]) correct for prioritised drawing and are 1 otherwise.
    """

    rows: dict[str, NDArray[Any]]
    slots: NDArray[np.int64]
    sequences: NDArray[np.int64]
    weights: NDArray[np.float32]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.rows[name]

    def __len__(self) -> int:
        return len(self.slots)


class ReplayStats(NamedTuple):
    """Counts over all processes: slots taken over from killed ones, slots passed over because a live process was still
    writing there a lap later, and rows given up because every slot was being written."""

    recovered: int
    contended: int
    dropped: int


class Integrity(NamedTuple):
    """Slots that hold a row, that hold none, and that a live (`in_flight`) or killed (`abandoned`) process writes."""

    finished: int
    empty: int
    in_flight: int
    abandoned: int


def note_of(fields: Iterable[Field]) -> str:
    """The fields as a text to keep in the shared memory."""
    return json.dumps([(field.name, field.shape, np.dtype(field.dtype).str) for field in fields])


def fields_of(note: str) -> tuple[Field, ...]:
    """The fields that `note_of` wrote. Raises `IntegrityError`."""
    try:
        return tuple(Field(name, tuple(shape), dtype) for name, shape, dtype in json.loads(note))
    except (ValueError, TypeError, InvalidInput) as error:
        raise IntegrityError(f"replay memory: its fields cannot be read: {error}") from error
