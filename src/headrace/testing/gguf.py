"""Small GGUF files for tests: metadata and float32 tensors in; a file, its bytes, or the parts of a split one out."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.llm.formats.types import TENSOR_TYPES
from headrace.testing.quantise import quantise

__all__ = ["Tensors", "encode_gguf", "write_gguf", "write_split_gguf"]

Tensors: TypeAlias = Mapping[str, tuple[str, npt.NDArray[Any]]]
"""Name to (type, array). Floats [rows, cols] are quantised; uint8 [rows, row bytes] are taken as they are."""

_CODES = {np.dtype(kind): code for code, kind in enumerate(("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?"))} | {
    np.dtype("u8"): 10,
    np.dtype("i8"): 11,
    np.dtype("f8"): 12,
}
_STRING, _ARRAY = 8, 9


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3, alignment: int = 32
) -> Path:
    """Write one GGUF file and return its path; see `encode_gguf`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_gguf(metadata, tensors, version=version, alignment=alignment))
    return path


def write_split_gguf(folder: Path, name: str, metadata: Mapping[str, Any], tensors: Tensors, parts: int) -> list[Path]:
    """Write `name`-00001-of-0000N.gguf and its siblings, the tensors spread over them in order; returns the paths."""
    names = list(tensors)
    bounds = [len(names) * part // parts for part in range(parts + 1)]
    paths = []
    for part in range(parts):
        keys = {
            "split.no": np.uint16(part),
            "split.count": np.uint16(parts),
            "split.tensors.count": np.int32(len(names)),
        }
        held = {one: tensors[one] for one in names[bounds[part] : bounds[part + 1]]}
        path = folder / f"{name}-{part + 1:05d}-of-{parts:05d}.gguf"
        paths.append(write_gguf(path, {**metadata, **keys} if part == 0 else keys, held))
    return paths


def encode_gguf(metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3, alignment: int = 32) -> bytes:
    """The bytes of a GGUF file.

    Args:
        metadata: Python values (int: uint32, int32, uint64 or int64, the first that fits; float: float32; str; bool),
            NumPy scalars (their own type), or lists and arrays of these.
        tensors: In the file's order; the outermost dimension first.
        alignment: Of each tensor; other than 32 it is also written as `general.alignment`.
    """
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    head = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    head += [_string(key) + _value(key, value) for key, value in metadata.items()]
    blobs: list[bytes] = []
    offset = 0
    for name, (kind, array) in tensors.items():
        layout = TENSOR_TYPES[kind]
        raw = array if array.dtype == np.uint8 else quantise(array, kind)
        shape = (*raw.shape[:-1], raw.shape[-1] // layout.size_bytes * layout.values)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_string(name) + dims + struct.pack("<IQ", layout.number, offset))
        blob = raw.tobytes()
        blobs.append(blob + bytes(-len(blob) % alignment))
        offset += len(blobs[-1])
    header = b"".join(head)
    return header + bytes(-len(header) % alignment) + b"".join(blobs)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, Sequence | np.ndarray):
        return struct.pack("<I", _ARRAY) + _array(key, value)
    scalar = _typed(key, value)
    return struct.pack("<I", _CODES[scalar.dtype]) + scalar.tobytes()


def _array(key: str, values: Sequence[Any] | npt.NDArray[Any]) -> bytes:
    if len(values) and isinstance(values[0], str):
        return struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_string, values))
    array = _typed(key, values)
    return struct.pack("<IQ", _CODES[array.dtype], array.size) + array.tobytes()


def _typed(key: str, value: Any) -> npt.NDArray[Any]:
    """As an array of the type it has by itself, or the smallest usual one for plain Python numbers."""
    array = np.asarray(value)
    if not isinstance(value, np.generic | np.ndarray):
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        elif array.dtype.kind in "iu":
            kinds = [np.dtype(kind) for kind in ("u4", "i4", "u8", "i8")]
            lowest, highest = (int(array.min()), int(array.max())) if array.size else (0, 0)
            fits = [kind for kind in kinds if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max]
            array = array.astype(fits[0])
    if array.dtype not in _CODES:
        raise InvalidInput(f"{key}: GGUF has no type for {array.dtype}")
    return array
