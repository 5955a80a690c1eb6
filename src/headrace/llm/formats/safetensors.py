"""One safetensors file: a mapped file in, its tensors as views out.

Layout: the header's length (8 bytes, little-endian), a JSON object of {name: {dtype, shape, data_offsets}}, then the
tensors' bytes side by side. Source: the format description of the safetensors project. Files are untrusted: tensors
must cover what follows the header once, without gaps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.formats.mapped import MappedFile

__all__ = ["RawTensor", "is_safetensors", "read_safetensors"]

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 8

_SIZES: Mapping[str, int] = MappingProxyType(
    {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
    | {"I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8}
)


class RawTensor(NamedTuple):
    """A tensor as the file has it: `dtype` in safetensors' names, `data` its bytes (uint8, a view of the file)."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def is_safetensors(start: bytes) -> bool:
    """Whether a file that begins with these (at least 9) bytes may be one."""
    return len(start) >= 9 and 2 <= int.from_bytes(start[:8], "little") <= MAX_HEADER_BYTES and start[8:9] == b"{"


def read_safetensors(file: MappedFile) -> dict[str, RawTensor]:
    """All tensors by name. Raises `LoadFailed` naming the file, the tensor, what was expected and what came."""
    header, first = _header(file)
    data, found, spans = file.array[first:], {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(file, name, entry, len(data))
        found[name] = RawTensor(dtype, shape, data[begin:end])
        spans.append((begin, end, name))
    reached = 0
    for begin, end, name in sorted(spans):
        if begin != reached:
            _fail(file, f"tensor {name!r} begins at {begin} of the data; expected {reached}, where the last one ends")
        reached = end
    if reached != len(data):
        _fail(file, f"the tensors end at {reached} of the data; expected {len(data)}, the end of the file")
    return found


def _header(file: MappedFile) -> tuple[dict[str, Any], int]:
    if file.size < 8:
        _fail(file, f"expected 8 bytes for the header's length, the file has {file.size}")
    (length,) = struct.unpack_from("<Q", file.view)
    if length > min(MAX_HEADER_BYTES, file.size - 8):
        _fail(file, f"expected a header of at most {min(MAX_HEADER_BYTES, file.size - 8)} bytes, got {length}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            _fail(file, f"{next(name for name in names if names.count(name) > 1)!r} is there twice in the header")
        return found

    try:
        header = json.loads(bytes(file.view[8 : 8 + length]), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        _fail(file, f"the header is not JSON: {error}")
    if not isinstance(header, dict):
        _fail(file, f"expected a JSON object as header, got {type(header).__name__}")
    return header, 8 + length


def _entry(file: MappedFile, name: str, entry: Any, size: int) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _fail(file, f"tensor {name!r}: expected dtype, shape and data_offsets, got {str(entry)[:200]}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _SIZES:
        _fail(file, f"tensor {name!r}: expected a dtype of {', '.join(_SIZES)}; got {str(dtype)[:50]!r}")
    if not _whole(shape) or len(shape) > MAX_DIMS:
        _fail(file, f"tensor {name!r}: expected a shape of up to {MAX_DIMS} whole numbers, got {str(shape)[:200]}")
    if not _whole(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        _fail(file, f"tensor {name!r}: expected two rising offsets up to {size}, got {str(offsets)[:200]}")
    expected = _SIZES[dtype]
    for dim in shape:
        expected *= dim
    if offsets[1] - offsets[0] != expected:
        _fail(file, f"tensor {name!r} of {dtype} {shape} takes {expected} bytes, got {offsets[1] - offsets[0]}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < 2**63 for one in values)


def _fail(file: MappedFile, problem: str) -> NoReturn:
    raise LoadFailed(f"{file.path}: {problem}")
