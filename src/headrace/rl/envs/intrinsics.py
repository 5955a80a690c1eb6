"""What the batch loops need beyond Python: typed pointers into a block, and local arrays on the stack.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.core.extending import intrinsic
from numba.np.numpy_support import from_dtype

from headrace.rl.envs.random import STREAM_WORDS

__all__ = ["namespace"]

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


def namespace() -> dict[str, Any]:
    """The names that the source of the loops uses, but for the environment's own."""
    kinds = {name: from_dtype(np.dtype(name)) for name in _DTYPES}
    stack_uint64 = _stack(types.uint64)

    def stack_stream() -> Any:
        return stack_uint64(STREAM_WORDS)

    from numba import njit

    return {
        "carray": carray,
        "int64": types.int64,
        "float64": types.float64,
        "up64": njit(forceinline=True)(lambda size: (size + 63) // 64 * 64),
        **{f"pointer_{name}": _pointer(kind) for name, kind in kinds.items()},
        **{f"stack_{name}": _stack(kind) for name, kind in kinds.items()},
        "stack_stream": stack_stream,
    }
