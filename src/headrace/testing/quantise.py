"""Weights of any type for tests: float32 in, the blocks of a GGUF type out, rounded to nearest without any search.

The plain types go through the `gguf` package, their reference; it has no writer for the K types and IQ4_NL, which are
written here. Tests want valid blocks near the numbers, not the best ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.errors import InvalidInput
from headrace.llm.formats.quants import IQ4_NL_VALUES
from headrace.llm.formats.types import TENSOR_TYPES

__all__ = ["quantise"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int8]


def quantise(values: npt.ArrayLike, kind: str) -> Bytes:
    """Floats [..., width] as uint8 [..., row bytes] of a GGUF type; `InvalidInput` for rows of no whole blocks."""
    array = np.ascontiguousarray(values, np.float32)
    if kind not in TENSOR_TYPES:
        raise InvalidInput(f"tensor type {kind!r}: expected one of {', '.join(TENSOR_TYPES)}")
    layout = TENSOR_TYPES[kind]
    if array.ndim == 0 or array.shape[-1] % layout.values:
        raise InvalidInput(f"{kind} takes rows of whole blocks of {layout.values}, got the shape {array.shape}")
    own = {"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl}
    if kind in own:
        rows = own[kind](array.reshape(-1, layout.values))
    else:
        gguf: Any = require("gguf", "test")
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            rows = gguf.quantize(array, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    return np.ascontiguousarray(rows).reshape(*array.shape[:-1], layout.row_bytes(array.shape[-1]))


def _ratio(values: Floats, by: Floats) -> Floats:
    return np.divide(values, by, out=np.zeros(np.broadcast_shapes(values.shape, by.shape), np.float32), where=by != 0)


def _half(values: Floats) -> tuple[Bytes, Floats]:
    """Numbers [n] as bytes [n, 2] of float16, and what they then are, [n, 1]."""
    half = values.astype(np.float16)
    return half.reshape(-1, 1).view(np.uint8), half.astype(np.float32).reshape(-1, 1)


def _affine(x: Floats, parts: int, scale_max: int, q_max: int) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """Super-blocks [n, 256] as (d, dmin, scale, minimum, q): x is about d * scale * q - dmin * minimum."""
    x = x.reshape(len(x), parts, -1)
    low = np.minimum(x.min(-1), 0)
    scale = (np.maximum(x.max(-1), 0) - low) / q_max
    d_bytes, d = _half(scale.max(-1) / scale_max)
    m_bytes, dmin = _half(-low.min(-1) / scale_max)
    s = np.rint(_ratio(scale, d)).clip(0, scale_max)
    m = np.rint(_ratio(-low, dmin)).clip(0, scale_max)
    q = np.rint(_ratio(x + (dmin * m)[..., None], (d * s)[..., None])).clip(0, q_max)
    return d_bytes, m_bytes, s.astype(np.uint8), m.astype(np.uint8), q.astype(np.uint8).reshape(len(x), -1)


def _signed(x: Floats, scale_max: int, q_max: int) -> tuple[Bytes, Integers, Integers]:
    """Super-blocks [n, 256] as (d, scale [n, 16], q in -q_max - 1 .. q_max): x is about d * scale * q."""
    x = x.reshape(len(x), 16, 16)
    scale = np.abs(x).max(-1) / q_max
    d_bytes, d = _half(scale.max(-1) / scale_max)
    s = np.rint(_ratio(scale, d)).clip(0, scale_max)
    q = np.rint(_ratio(x, (d * s)[..., None])).clip(-q_max - 1, q_max)
    return d_bytes, s.astype(np.int8), q.astype(np.int8).reshape(len(x), -1)


def _pack(q: npt.NDArray[Any], group: int, bits: int) -> Bytes:
    """Within each run of `group * (8 // bits)` values, value i of group g goes to byte i, g * bits up."""
    q = q.astype(np.uint8).reshape(len(q), -1, 8 // bits, group)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    packed: Bytes = np.bitwise_or.reduce(q << shifts, axis=2).reshape(len(q), -1)
    return packed


def _scales_6_bit(s: Bytes, m: Bytes) -> Bytes:
    """Eight 6-bit scales and minima in 12 bytes: the high two bits of the last four lie above the first four."""
    first = s[:, :4] | (s[:, 4:] >> 4 << 6)
    second = m[:, :4] | (m[:, 4:] >> 4 << 6)
    return np.hstack([first, second, (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4])


def _q2_k(x: Floats) -> Bytes:
    d, dmin, s, m, q = _affine(x, 16, 15, 3)
    return np.hstack([s | m << 4, _pack(q, 32, 2), d, dmin])


def _q3_k(x: Floats) -> Bytes:
    d, s, q = _signed(x, 31, 3)
    raised: Bytes = (q + 4).astype(np.uint8)
    scale: Bytes = (s + 32).astype(np.uint8)
    low = _pack(scale & 15, 8, 4)
    return np.hstack([_pack(raised >> 2, 32, 1), _pack(raised & 3, 32, 2), low, _pack(scale >> 4, 4, 2), d])


def _q4_k(x: Floats) -> Bytes:
    d, dmin, s, m, q = _affine(x, 8, 63, 15)
    return np.hstack([d, dmin, _scales_6_bit(s, m), _pack(q, 32, 4)])


def _q5_k(x: Floats) -> Bytes:
    d, dmin, s, m, q = _affine(x, 8, 63, 31)
    return np.hstack([d, dmin, _scales_6_bit(s, m), _pack(q >> 4, 32, 1), _pack(q & 15, 32, 4)])


def _q6_k(x: Floats) -> Bytes:
    d, s, q = _signed(x, 127, 31)
    raised: Bytes = (q + 32).astype(np.uint8)
    return np.hstack([_pack(raised & 15, 64, 4), _pack(raised >> 4, 32, 2), s.view(np.uint8), d])


def _iq4_nl(x: Floats) -> Bytes:
    d_bytes, d = _half(np.abs(x).max(-1) / 127)
    q: Bytes = np.abs(_ratio(x, d)[..., None] - np.array(IQ4_NL_VALUES, np.float32)).argmin(-1).astype(np.uint8)
    return np.hstack([d_bytes, _pack(q, 16, 4)])
