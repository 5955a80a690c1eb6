"""Where the fields of n environments lie in one block of bytes: struct of arrays, each array on a cache line.

In order: the episode number (int64), the steps of the episode (int32), how it ended (uint8: 0 running, 1 terminated,
2 truncated, 3 both; waiting for a reset), then the fields of the state as declared. The names of the loop's own begin
with an underscore, which those of a NamedTuple cannot.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.envs.definition import Definition, Field

__all__ = ["ALIGNMENT", "new_block", "row_bytes", "sections", "state_bytes", "views"]

ALIGNMENT = 64

_HEADER = (
    Field("_episode", np.dtype(np.int64)),
    Field("_steps", np.dtype(np.int32)),
    Field("_ended", np.dtype(np.uint8)),
)


def sections(definition: Definition) -> tuple[Field, ...]:
    """The arrays of a block in order: three of the loop's own, then the fields."""
    return _HEADER + definition.fields


def row_bytes(field: Field) -> int:
    """Bytes of one environment in the array of `field`."""
    return field.dtype.itemsize * math.prod(field.shape)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def state_bytes(definition: Definition, n: int) -> int:
    """Size of the block of `n` environments."""
    return sum(_rounded(row_bytes(field) * n) for field in sections(definition))


def new_block(size: int) -> NDArray[np.uint8]:
    """`size` zeroed bytes that begin on a cache line."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def views(definition: Definition, block: NDArray[np.uint8], n: int) -> dict[str, NDArray[Any]]:
    """Every array of a block by name, without a copy: [n], or [n, *shape] for array fields; what is written is seen by
    the environments. The loop's own are `_episode`, `_steps` and `_ended`."""
    if block.dtype != np.uint8 or block.ndim != 1 or len(block) < state_bytes(definition, n):
        raise InvalidInput(
            f"the state of {n} environments is {state_bytes(definition, n)} bytes (uint8), "
            f"got {block.dtype}{list(block.shape)}"
        )
    found, at = {}, 0
    for field in sections(definition):
        size = row_bytes(field) * n
        found[field.name] = block[at : at + size].view(field.dtype).reshape((n, *field.shape))
        at += _rounded(size)
    return found
