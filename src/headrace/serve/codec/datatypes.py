"""Open Inference Protocol datatypes and their NumPy dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.errors import InvalidInput

__all__ = ["DATATYPES", "datatype_of", "dtype_of"]

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def dtype_of(datatype: str, where: str) -> np.dtype[Any]:
    """NumPy dtype of a protocol datatype. Raises `InvalidInput` naming `where`, what came and what is known."""
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise InvalidInput(f"{where}: unknown datatype {datatype!r}; expected one of {', '.join(DATATYPES)}")
    return dtype


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Protocol datatype of a NumPy dtype; strings of any kind are BYTES."""
    name = _NAMES.get(dtype)
    if name is not None:
        return name
    if dtype.kind in "SUO":
        return "BYTES"
    raise InvalidInput(f"dtype {dtype} has no Open Inference Protocol datatype")
