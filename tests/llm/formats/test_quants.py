"""Every quantised type is decoded bit for bit as the `gguf` package decodes it, whatever its bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.llm.formats.quants import dequantise
from headrace.llm.formats.types import GGUF_NAMES, TENSOR_TYPES
from headrace.testing.quantise import quantise

# Where a block keeps its float16 scales.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}
# Steps of each type's grid from 0 to 1, as a power of two; writing for tests is off by one of them at most.
BITS = {"F32": 30, "F16": 10, "BF16": 7, "Q4_0": 3, "Q4_1": 3, "Q5_0": 4, "Q5_1": 4, "Q8_0": 7} | {
    "Q2_K": 1,
    "Q3_K": 1.5,
    "Q4_K": 3,
    "Q5_K": 4,
    "Q6_K": 5,
    "IQ4_NL": 2.4,
}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0, 6e-8, -6e-8, 6.1e-5, 1.0], np.float16)


def _reference(data, kind):
    with np.errstate(all="ignore"):
        return gguf.dequantize(data, gguf.GGMLQuantizationType[kind]).astype(np.float32)


def _assert_equal_bits(ours, theirs):
    assert ours.dtype == np.float32
    nan = np.isnan(theirs)
    assert (np.isnan(ours) == nan).all()
    assert (ours.view(np.uint32)[~nan] == theirs.view(np.uint32)[~nan]).all()


def test_the_types_are_those_of_the_format():
    for number, name in GGUF_NAMES.items():
        assert gguf.GGMLQuantizationType(number).name == name
    for name, layout in TENSOR_TYPES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (layout.values, layout.size_bytes)
        assert gguf.GGMLQuantizationType[name] == layout.number


@pytest.mark.parametrize("kind", TENSOR_TYPES)
def test_random_bytes(kind):
    layout = TENSOR_TYPES[kind]
    width = 3 * layout.values
    data = np.random.default_rng(layout.number).integers(0, 256, (500, layout.row_bytes(width)), np.uint8)
    _assert_equal_bits(dequantise(data.ravel(), kind, (500, width)), _reference(data, kind))


@pytest.mark.parametrize("kind", SCALES)
def test_special_scales(kind):
    layout = TENSOR_TYPES[kind]
    data = np.random.default_rng(3).integers(0, 256, (len(SPECIAL) ** 2, layout.size_bytes), np.uint8)
    for index, first in enumerate(SCALES[kind]):
        values = np.tile(SPECIAL, len(SPECIAL)) if index else np.repeat(SPECIAL, len(SPECIAL))
        data[:, first : first + 2] = values[:, None].view(np.uint8)
    _assert_equal_bits(dequantise(data, kind, (len(data), layout.values)), _reference(data, kind))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_every_half(kind):
    data = np.arange(1 << 16, dtype=np.uint16)
    _assert_equal_bits(dequantise(data.view(np.uint8), kind, (1 << 16,)), _reference(data.view(np.uint8), kind).ravel())


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x0F, 0xF0, 0x55, 0x80, 0x7F])
@pytest.mark.parametrize("kind", SCALES)
def test_uniform_codes(kind, byte):
    layout = TENSOR_TYPES[kind]
    data = np.full((1, layout.size_bytes), byte, np.uint8)
    for first in SCALES[kind]:
        data[:, first : first + 2] = np.array([1.5], np.float16).view(np.uint8)
    _assert_equal_bits(dequantise(data, kind, (1, layout.values)), _reference(data, kind))


@pytest.mark.parametrize("kind", TENSOR_TYPES)
def test_more_blocks_than_are_decoded_at_once(kind, monkeypatch):
    monkeypatch.setattr("headrace.llm.formats.quants._CHUNK", 512)
    layout = TENSOR_TYPES[kind]
    data = np.random.default_rng(1).integers(0, 256, (7, layout.row_bytes(768)), np.uint8)
    _assert_equal_bits(dequantise(data, kind, (7, 768)), _reference(data, kind))


@pytest.mark.parametrize(
    ("size", "kind", "shape"),
    [(20, "Q4_1", (33,)), (19, "Q4_1", (32,)), (40, "Q4_1", (3, 32)), (4, "F32", ()), (4, "IQ4_XS", (1,))],
)
def test_bytes_that_are_no_such_tensor_are_refused(size, kind, shape):
    with pytest.raises(InvalidInput, match=r"no tensor of the shape|expected one of"):
        dequantise(np.zeros(size, np.uint8), kind, shape)


@pytest.mark.parametrize("kind", TENSOR_TYPES)
def test_what_tests_write_comes_back_within_a_step(kind):
    """The writer for tests: it is off by a step of the type's grid at most, and zero stays zero."""
    values = np.random.default_rng(5).uniform(-1, 1, (16, 512)).astype(np.float32)
    values[3] = 0
    back = dequantise(quantise(values, kind), kind, values.shape)
    assert np.abs(back - values).max() <= 2.0 ** -BITS[kind]
    assert (back[3] == 0).all()
