"""Arrays of numbers between NumPy and JSON text, converted natively: no Python object per number, and no interpreter
lock held while a large tensor is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._native import format_json_numbers, parse_json_numbers
from headrace.errors import InvalidInput

__all__ = ["format_numbers", "parse_numbers"]


def parse_numbers(text: bytes | memoryview, shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A JSON array of numbers as a new array.

    Args:
        text: One JSON array, flat in row-major order or nested as `shape`.
        shape: Of the result; must hold exactly as many numbers as the text.
        dtype: Any integer type, or float16, float32, float64.

    Raises:
        InvalidInput: saying what was expected, what came and at which byte; also for integers out of range and for
            numbers too large for `dtype`.
    """
    if dtype == np.float16:
        wide = parse_numbers(text, shape, np.dtype(np.float32))
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float16)
        if not np.isfinite(narrow).all():
            raise InvalidInput("expected numbers in range of the datatype, got one beyond 65504")
        return narrow
    array = np.empty(shape, dtype)
    parse_json_numbers(text, array)
    return array


def format_numbers(array: npt.NDArray[Any]) -> bytes:
    """The elements in row-major order as one flat JSON array: shortest digits that read back the same, NaN as null."""
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    return format_json_numbers(array if array.flags.c_contiguous else np.ascontiguousarray(array))
