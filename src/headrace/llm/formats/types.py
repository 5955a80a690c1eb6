"""How each tensor type lies in a file: its name in, its number in GGUF, the values of a block and its bytes out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["GGUF_NAMES", "TENSOR_TYPES", "TensorType"]


class TensorType(NamedTuple):
    """`number` is the type's id in GGUF; a block of `values` numbers along a row takes `size_bytes` bytes."""

    number: int
    values: int
    size_bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` numbers, which must be whole blocks."""
        return width // self.values * self.size_bytes


TENSOR_TYPES: Mapping[str, TensorType] = MappingProxyType(
    {
        "F32": TensorType(0, 1, 4),
        "F16": TensorType(1, 1, 2),
        "BF16": TensorType(30, 1, 2),
        "Q4_0": TensorType(2, 32, 18),
        "Q4_1": TensorType(3, 32, 20),
        "Q5_0": TensorType(6, 32, 22),
        "Q5_1": TensorType(7, 32, 24),
        "Q8_0": TensorType(8, 32, 34),
        "Q2_K": TensorType(10, 256, 84),
        "Q3_K": TensorType(11, 256, 110),
        "Q4_K": TensorType(12, 256, 144),
        "Q5_K": TensorType(13, 256, 176),
        "Q6_K": TensorType(14, 256, 210),
        "IQ4_NL": TensorType(20, 32, 18),
    }
)
"""What is read; every other type is refused by name."""

GGUF_NAMES: Mapping[int, str] = MappingProxyType(
    {
        **{kind.number: name for name, kind in TENSOR_TYPES.items()},
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        21: "IQ3_S",
        22: "IQ2_S",
        23: "IQ4_XS",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        39: "MXFP4",
        40: "NVFP4",
        41: "Q1_0",
    }
)
"""GGUF's number of a type to its name, for those that are read and those that are refused."""
