"""What the batch loops need beyond Python: typed pointers into a block, and local arrays on the stack.

Importing this module imports numba.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.core.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

__all__ = ["array_at", "namespace"]

_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def _pointer(kind: Any) -> Any:
    """`pointer(base, offset)`: the address `offset` bytes past `base`, as a pointer to `kind`."""

    @intrinsic
    def pointer(typing: Any, base: Any, offset: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte = context.get_value_type(types.voidptr)
            start = builder.bitcast(arguments[0], byte)
            return builder.bitcast(builder.gep(start, [arguments[1]]), context.get_value_type(types.CPointer(kind)))

        return types.CPointer(kind)(base, types.int64), lower

    return pointer


def _stack(kind: Any) -> Any:
    """`stack(count)`: `count` numbers on the stack of the function that asks; `count` must be a constant."""

    @intrinsic(prefer_literal=True)
    def stack(typing: Any, count: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = context.get_value_type(types.CPointer(kind)).pointee
            room = cgutils.alloca_once(builder, value, size=count.literal_value)
            room.align = 64
            return room

        return types.CPointer(kind)(count), lower

    return stack


def array_at(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """`array_at(dtype, shape)(base, offset)`: the memory `offset` bytes past `base` as an array; nothing is counted."""
    kind = types.Array(from_dtype(dtype), len(shape), "C", aligned=True)

    @intrinsic
    def array(typing: Any, base: Any, offset: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            made = make_array(kind)(context, builder)
            start = builder.bitcast(arguments[0], context.get_value_type(types.voidptr))
            data = builder.bitcast(builder.gep(start, [arguments[1]]), made.data.type)
            word = context.get_value_type(types.intp)
            lengths = [word(n) for n in shape]
            strides = [word(dtype.itemsize * math.prod(shape[k + 1 :])) for k in range(len(shape))]
            populate_array(made, data, lengths, strides, word(dtype.itemsize), meminfo=None)
            return made._getvalue()

        return kind(base, types.int64), lower

    return array


def namespace() -> dict[str, Any]:
    """The names that the source of the loops uses, but for the environment's own. A bool is stored as a uint8."""
    kinds = {name: from_dtype(np.dtype(name)) for name in _DTYPES} | {"bool": types.uint8}
    return {
        "int64": types.int64,
        "float64": types.float64,
        "up64": njit(forceinline=True)(_up64),
        **{f"pointer_{name}": _pointer(kind) for name, kind in kinds.items()},
        **{f"stack_{name}": _stack(kind) for name, kind in kinds.items()},
    }


def _up64(size: int) -> int:
    return (size + 63) // 64 * 64
