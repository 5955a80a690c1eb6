"""The opsets an `.onnx` file asks for, which ONNX Runtime does not tell: a path in, domain -> version out.

Reads only the top level of the protobuf message `ModelProto`, stepping over the graph without loading it.
Field numbers are those of onnx.proto: `opset_import = 8` {`domain = 1`, `version = 2`}.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

__all__ = ["opsets"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def opsets(file: Path) -> dict[str, int]:
    """Operator-set versions by domain ("ai.onnx" for the default one); empty for a file that is not protobuf."""
    found: dict[str, int] = {}
    try:
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for number, value in _fields(data, 0, len(data)):
                if number == 8 and isinstance(value, tuple):
                    entry = dict(_fields(data, *value))
                    span, version = entry.get(1), entry.get(2)
                    domain = data[span[0] : span[1]].decode() if isinstance(span, tuple) else ""
                    found[domain or "ai.onnx"] = version if isinstance(version, int) else 0
    except (ValueError, IndexError, OSError):
        return {}
    return found


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Yield (field number, integer or (start, end) of its bytes)."""
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("truncated")
            yield number, (at, at + size)
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")
