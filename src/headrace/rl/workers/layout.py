"""Spaces as arrays: a Gymnasium space and a number of rows in, one array for each of its leaves out, in shared memory.

A leaf is a Box, Discrete, MultiDiscrete or MultiBinary; Tuple and Dict nest them. Row i of all arrays is element i.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.extras import require
from headrace.errors import InvalidInput

__all__ = ["Leaf", "Rows", "flat", "leaves", "nest", "reader", "writer"]

_LINE = 64  # bytes; every array begins a cache line


@dataclass(frozen=True, slots=True)
class Leaf:
    """A space without spaces in it. `path` says where it is, e.g. "['camera'][0]"; "" for a plain space."""

    path: str
    space: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def kind(self) -> str:
        """ "Box", "Discrete", "MultiDiscrete" or "MultiBinary"."""
        spaces = require("gymnasium.spaces", "rl")
        names = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
        return next(name for name in names if isinstance(self.space, getattr(spaces, name)))


def leaves(space: Any, path: str = "") -> list[Leaf]:
    """The leaves of a Gymnasium space, in its own order. Raises `InvalidInput` for a space that has no fixed layout."""
    spaces = require("gymnasium.spaces", "rl")
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.items() for leaf in leaves(part, f"{path}[{key!r}]")]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in leaves(part, f"{path}[{i}]")]
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return [Leaf(path, space, tuple(space.shape), np.dtype(space.dtype))]
    raise InvalidInput(
        f"space{path}: expected Box, Discrete, MultiDiscrete, MultiBinary, or Tuple or Dict of them, "
        f"got {type(space).__name__}"
    )


def nest(space: Any, values: Iterator[Any]) -> Any:
    """The structure of `space` with one of `values` for each leaf, in order."""
    spaces = require("gymnasium.spaces", "rl")
    if isinstance(space, spaces.Dict):
        return {key: nest(part, values) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nest(part, values) for part in space.spaces)
    return next(values)


def flat(space: Any, value: Any) -> Iterator[Any]:
    """The values at the leaves, in order. Raises `KeyError`, `IndexError` or `TypeError` where `value` does not fit."""
    spaces = require("gymnasium.spaces", "rl")
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from flat(part, value[key])
    elif isinstance(space, spaces.Tuple):
        if len(value) != len(space.spaces):
            raise IndexError(f"expected {len(space.spaces)} parts, got {len(value)}")
        for i, part in enumerate(space.spaces):
            yield from flat(part, value[i])
    else:
        yield value


class Rows:
    """`n` elements of `space` at `offset` (bytes) of `buffer` (uint8); `arrays[k]` is [n, *shape of leaf k]."""

    def __init__(self, space: Any, n: int, buffer: NDArray[np.uint8], offset: int = 0) -> None:
        self.space, self.n = space, n
        self.leaves = leaves(space)
        self.arrays: list[NDArray[Any]] = []
        for leaf in self.leaves:
            size = n * math.prod(leaf.shape) * leaf.dtype.itemsize
            self.arrays.append(buffer[offset : offset + size].view(leaf.dtype).reshape(n, *leaf.shape))
            offset += _aligned(size)
        self.getters = [_getter(leaf, array) for leaf, array in zip(self.leaves, self.arrays, strict=True)]

    @staticmethod
    def nbytes(space: Any, n: int) -> int:
        return sum(_aligned(n * math.prod(leaf.shape) * leaf.dtype.itemsize) for leaf in leaves(space))

    @property
    def tree(self) -> Any:
        """The arrays in the structure of the space; no copy."""
        return nest(self.space, iter(self.arrays))

    def take(self, rows: Any) -> Any:
        """Copies of the chosen rows (an index array, or a slice), in the structure of the space."""
        views = (array[rows] for array in self.arrays)
        return nest(self.space, (view.copy() if isinstance(rows, slice) else view for view in views))

    def element(self, row: int) -> Any:
        """A copy of one element, as the space's own `sample` would look."""
        return nest(self.space, (get(row) for get in self.getters))


def _aligned(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _getter(leaf: Leaf, array: NDArray[Any]) -> Callable[[int], Any]:
    """What copies one row: a NumPy scalar of a Discrete, else an array, also where it has no dimensions."""
    if leaf.kind == "Discrete":
        return array.__getitem__
    return lambda row: array[row, ...].copy()


def reader(rows: Rows) -> Callable[[int], Any]:
    """What gives element i, a copy that an environment may keep."""
    plain = len(rows.arrays) == 1 and rows.space is rows.leaves[0].space
    return rows.getters[0] if plain else rows.element


def writer(rows: Rows) -> Callable[[int, Any], bool]:
    """What stores an element as row i and tells whether all its floats are finite.

    It raises `InvalidInput` that says what was expected where the value does not fit the space's shape or dtype.
    """
    stores = [_store(leaf, array) for leaf, array in zip(rows.leaves, rows.arrays, strict=True)]
    if len(stores) == 1 and rows.space is rows.leaves[0].space:
        return stores[0]
    space = rows.space

    def store(row: int, value: Any) -> bool:
        try:
            parts = list(flat(space, value))
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidInput(f"observation: expected the structure of {space}, got {value!r} ({error!r})") from error
        fine = True
        for put, part in zip(stores, parts, strict=True):
            fine = put(row, part) and fine
        return fine

    return store


def _store(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], bool]:
    return _store_number(leaf, array) if leaf.kind == "Discrete" else _store_array(leaf, array)


def _store_number(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], bool]:
    low, high = int(leaf.space.start), int(leaf.space.start + leaf.space.n)

    def store(row: int, value: Any) -> bool:
        try:
            number = operator.index(value)
        except TypeError:
            raise InvalidInput(f"observation{leaf.path}: expected a whole number, got {value!r}") from None
        if not low <= number < high:
            raise InvalidInput(f"observation{leaf.path}: expected {low} … {high - 1}, got {number}")
        array[row] = number
        return True

    return store


def _store_array(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], bool]:
    shape, dtype = leaf.shape, leaf.dtype
    places = [array[i : i + 1].reshape(shape) for i in range(len(array))]
    lines = [place.reshape(-1) for place in places]
    nothing = np.zeros(math.prod(shape), dtype) if dtype.kind == "f" else None
    accepted = {dtype}

    def store(row: int, value: Any) -> bool:
        given = value if type(value) is np.ndarray else np.asarray(value)
        if given.shape != shape:
            raise InvalidInput(f"observation{leaf.path}: expected the shape {list(shape)}, got {list(given.shape)}")
        if given.dtype not in accepted:
            if not np.can_cast(given.dtype, dtype, "same_kind"):
                raise InvalidInput(f"observation{leaf.path}: expected {dtype}, got {given.dtype}")
            accepted.add(given.dtype)
        places[row][...] = given
        # A product with zeros is 0 unless a factor is NaN or infinite; no other way to look is as quick on short rows.
        return nothing is None or bool(lines[row].dot(nothing) == 0.0)

    return store
