"""Small model files for the readers' tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.llm.formats.types import TENSOR_TYPES

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny, 小さい",
    "llama.block_count": 2,
    "u8": np.uint8(200),
    "i8": np.int8(-100),
    "u16": np.uint16(60_000),
    "i16": np.int16(-30_000),
    "i32": -5,
    "u64": 2**63,
    "i64": -(2**40),
    "f32": 0.5,
    "f64": np.float64(1e-300),
    "yes": True,
    "no": False,
    "texts": ["", "a", "é", "日本語", "x" * 300],
    "numbers": [1, 2, 3],
    "scores": np.array([0.5, -1.5], np.float32),
    "flags": [True, False, True],
    "empty": np.zeros(0, np.int32),
    "last": "end",
}


@pytest.fixture(scope="session")
def metadata() -> dict[str, Any]:
    """A value of every type that GGUF knows."""
    return METADATA


@pytest.fixture(scope="session")
def tensors() -> dict[str, tuple[str, np.ndarray]]:
    """A tensor of every type that is read, and two of other ranks."""
    rng = np.random.default_rng(7)
    found = {f"w.{kind}": (kind, rng.standard_normal((2, 256)).astype(np.float32)) for kind in TENSOR_TYPES}
    found["vector"] = ("F32", rng.standard_normal(5).astype(np.float32))
    found["cube"] = ("Q8_0", rng.standard_normal((2, 3, 32)).astype(np.float32))
    return found
