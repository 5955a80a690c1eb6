"""Quantised tensors as numbers: the bytes of blocks in, float32 out, bit for bit what the `gguf` package makes of them.

Each function takes blocks uint8 [n, bytes of a block] and returns float32 [n, values of a block]. The layouts are those
of ggml's block structures; `d` and `dmin` are float16 scales, a K type has a second level of small integer scales.
Products and sums are rounded one by one in float32, in the order written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.llm.formats.types import TENSOR_TYPES

__all__ = ["IQ4_NL_VALUES", "dequantise"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

IQ4_NL_VALUES: tuple[int, ...] = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the sixteen codes of IQ4_NL stand for."""

_CHUNK = 1 << 20
"""Values decoded at a time, so that the intermediate arrays stay small beside a large tensor."""


def dequantise(data: Bytes, kind: str, shape: tuple[int, ...]) -> Floats:
    """A tensor's bytes as float32 in `shape` (outermost first); raises `InvalidInput` unless they fit each other."""
    layout = TENSOR_TYPES.get(kind)
    if layout is None:
        raise InvalidInput(f"tensor type {kind!r}: expected one of {', '.join(TENSOR_TYPES)}")
    n_values = int(np.prod(shape, dtype=np.int64))
    if not shape or shape[-1] % layout.values or data.size * layout.values != n_values * layout.size_bytes:
        raise InvalidInput(f"{data.size} bytes of {kind} are no tensor of the shape {list(shape)}")
    blocks = np.ascontiguousarray(data).reshape(-1, layout.size_bytes)
    out = np.empty((len(blocks), layout.values), np.float32)
    step = _CHUNK // layout.values
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(blocks), step):
            out[first : first + step] = _DECODERS[kind](blocks[first : first + step])
    return out.reshape(shape)


def _half(blocks: Bytes, first: int) -> Floats:
    """The float16 at byte `first` of every block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view(np.float16).astype(np.float32)


def _unpack(packed: Bytes, group: int, bits: int) -> Bytes:
    """[n, bytes] to [n, bytes * 8 / bits]: of every `group` bytes first the lowest `bits`, then the next …"""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    fields = packed.reshape(len(packed), -1, 1, group) >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)


def _high_bits(blocks: Bytes, first: int) -> Bytes:
    """The 32 fifth bits of Q5_0 and Q5_1 at byte `first`, as 0 or 16."""
    return np.unpackbits(blocks[:, first : first + 4], axis=1, bitorder="little") << np.uint8(4)


def _scaled(scales: Floats, values: npt.NDArray[np.uint8 | np.int8], minima: Floats | None = None) -> Floats:
    """scales [n, parts] times values [n, 256] by parts, less the minima [n, parts]."""
    parts = values.astype(np.float32).reshape(len(values), scales.shape[1], -1)
    parts *= scales[:, :, None]
    if minima is not None:
        parts -= minima[:, :, None]
    return parts.reshape(values.shape)


def _scales_6_bit(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of Q4_K and Q5_K, 6 bits each, from 12 bytes [n, 12]."""
    first, second, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.hstack([first & 63, last & 15 | first >> 2 & 48])
    minima = np.hstack([second & 63, last >> 4 | second >> 2 & 48])
    return scales.astype(np.float32), minima.astype(np.float32)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_unpack(blocks[:, 2:], 16, 4).astype(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _unpack(blocks[:, 4:], 16, 4).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _unpack(blocks[:, 6:], 16, 4) | _high_bits(blocks, 2)
    return _half(blocks, 0) * (codes.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _unpack(blocks[:, 8:], 16, 4) | _high_bits(blocks, 4)
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    d = _half(blocks, 80) * (scales & 15).astype(np.float32)
    dmin = _half(blocks, 82) * (scales >> 4).astype(np.float32)
    return _scaled(d, _unpack(blocks[:, 16:80], 32, 2), dmin)


def _q3_k(blocks: Bytes) -> Floats:
    low, high = _unpack(blocks[:, 96:104], 8, 4), _unpack(blocks[:, 104:108], 4, 2)
    scales = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    codes = _unpack(blocks[:, 32:96], 32, 2) | _unpack(blocks[:, :32], 32, 1) << np.uint8(2)
    return _scaled(_half(blocks, 108) * scales.astype(np.float32), codes.astype(np.int8) - np.int8(4))


def _q4_k(blocks: Bytes) -> Floats:
    scales, minima = _scales_6_bit(blocks[:, 4:16])
    return _scaled(_half(blocks, 0) * scales, _unpack(blocks[:, 16:], 32, 4), _half(blocks, 2) * minima)


def _q5_k(blocks: Bytes) -> Floats:
    scales, minima = _scales_6_bit(blocks[:, 4:16])
    codes = _unpack(blocks[:, 48:], 32, 4) | _unpack(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return _scaled(_half(blocks, 0) * scales, codes, _half(blocks, 2) * minima)


def _q6_k(blocks: Bytes) -> Floats:
    codes = _unpack(blocks[:, :128], 64, 4) | _unpack(blocks[:, 128:192], 32, 2) << np.uint8(4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(_half(blocks, 208) * scales, codes.astype(np.int8) - np.int8(32))


def _iq4_nl(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.array(IQ4_NL_VALUES, np.float32)[_unpack(blocks[:, 2:], 16, 4)]


_DECODERS: Mapping[str, Callable[[Bytes], Floats]] = MappingProxyType(
    {
        "F32": _f32,
        "F16": _f16,
        "BF16": _bf16,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
        "IQ4_NL": _iq4_nl,
    }
)
