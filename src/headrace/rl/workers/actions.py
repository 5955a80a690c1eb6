"""Actions of many environments as a learner gives them, in; checked and written to the board, out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.workers.layout import Leaf, Rows, flat

__all__ = ["ActionWriter"]


class ActionWriter:
    """Writes to `rows`. `named` says in words whose row a number is; `values`: whether to look at every number."""

    def __init__(self, rows: Rows, named: Callable[[int], str], *, values: bool = True) -> None:
        self._rows, self._named = rows, named
        self._checks = [_bounds(leaf) if values else None for leaf in rows.leaves]

    def write(self, actions: Any, chosen: NDArray[np.intp] | None = None) -> None:
        """Actions batched as Gymnasium's vector environments take them: an array [n, *shape] for each leaf.

        `chosen`: whose rows they are for; default: all, in order. Raises `InvalidInput` that says which row for a wrong
        structure, shape or dtype, for NaN, and for a number outside the space; nothing has been written then.
        """
        n = self._rows.n if chosen is None else len(chosen)
        try:
            parts = list(flat(self._rows.space, actions))
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidInput(f"actions: expected the structure of {self._rows.space}: {error!r}") from error
        checked = []
        for leaf, check, part in zip(self._rows.leaves, self._checks, parts, strict=True):
            given = _array(leaf, part, n)
            if check is not None:
                self._check(leaf, given, *check, chosen)
            checked.append(given)
        where: Any = slice(None) if chosen is None else chosen
        for array, given in zip(self._rows.arrays, checked, strict=True):
            array[where] = given

    def _check(self, leaf: Leaf, given: NDArray[Any], low: Any, high: Any, chosen: NDArray[np.intp] | None) -> None:
        good = (given >= low) & (given <= high)  # false for NaN
        if good.all():
            return
        at = np.argwhere(~good)[0]
        row = int(at[0] if chosen is None else chosen[at[0]])
        one = f"[{', '.join(map(str, at[1:]))}]" if len(at) > 1 else ""
        least, most = (np.broadcast_to(bound, given.shape[1:])[tuple(at[1:])] for bound in (low, high))
        raise InvalidInput(
            f"action{leaf.path}{one} of {self._named(row)}: expected {least:g} … {most:g}, got {given[tuple(at)]:g}"
        )


def _array(leaf: Leaf, part: Any, n: int) -> NDArray[Any]:
    try:
        given = np.asarray(part)
    except ValueError as error:
        raise InvalidInput(f"actions{leaf.path}: {error}") from error
    if given.shape != (n, *leaf.shape):
        raise InvalidInput(f"actions{leaf.path}: expected the shape {[n, *leaf.shape]}, got {list(given.shape)}")
    if given.dtype.kind not in ("fiu" if leaf.dtype.kind == "f" else "iub"):
        kind = "floats" if leaf.dtype.kind == "f" else "whole numbers"
        raise InvalidInput(f"actions{leaf.path}: expected {kind}, got {given.dtype}")
    return given


def _bounds(leaf: Leaf) -> tuple[Any, Any]:
    space = leaf.space
    if leaf.kind == "Box":
        return space.low, space.high
    if leaf.kind == "MultiBinary":
        return 0, 1
    if leaf.kind == "Discrete":
        return int(space.start), int(space.start + space.n - 1)
    return space.start, space.start + space.nvec - 1
