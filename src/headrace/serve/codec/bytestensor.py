"""BYTES tensors in the binary extension: each element is a little-endian uint32 length followed by its bytes."""

from __future__ import annotations

import struct

import numpy as np

from headrace.errors import InvalidInput
from headrace.serve.protocol import Array

__all__ = ["pack_bytes", "unpack_bytes"]


def unpack_bytes(raw: memoryview, count: int, where: str) -> Array:
    """The `count` elements of `raw` as an object array of bytes. Raises `InvalidInput` unless they fill it exactly."""
    if count * 4 > len(raw):
        raise InvalidInput(f"{where}: {count} BYTES elements need at least {count * 4} bytes, got {len(raw)}")
    elements = np.empty(count, np.object_)
    offset = 0
    for index in range(count):
        if offset + 4 > len(raw):
            raise InvalidInput(f"{where}: BYTES element {index} of {count} has no length; the tensor ends")
        (size,) = struct.unpack_from("<I", raw, offset)
        offset += 4
        if size > len(raw) - offset:
            raise InvalidInput(f"{where}: BYTES element {index} claims {size} bytes, {len(raw) - offset} are left")
        elements[index] = bytes(raw[offset : offset + size])
        offset += size
    if offset != len(raw):
        raise InvalidInput(f"{where}: {len(raw) - offset} bytes after the last of {count} BYTES elements")
    return elements


def pack_bytes(array: Array) -> bytes:
    """The inverse of `unpack_bytes`; str elements become UTF-8."""
    parts: list[bytes] = []
    for element in array.ravel():
        data = element if isinstance(element, bytes) else str(element).encode()
        parts += (struct.pack("<I", len(data)), data)
    return b"".join(parts)
