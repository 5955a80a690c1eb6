"""Packed integers behave as the NumPy array of them, in a half or a whole byte each, and without copies."""

from __future__ import annotations

import math
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.errors import InvalidInput
from headrace.llm.packed import PackedTensor

RANGES = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255)}
KINDS = st.sampled_from(sorted(RANGES))
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)


@st.composite
def arrays(draw, shapes=SHAPES):
    """A kind and values of it."""
    kind = draw(KINDS)
    low, high = RANGES[kind]
    dtype = np.uint8 if kind[0] == "u" else np.int8
    return kind, draw(hnp.arrays(dtype, draw(shapes), elements=st.integers(low, high)))


@given(arrays())
def test_what_is_packed_comes_back(case):
    kind, values = case
    tensor = PackedTensor.pack(values, kind)
    assert (tensor.kind, tensor.shape, tensor.ndim, tensor.size) == (kind, values.shape, values.ndim, values.size)
    assert tensor.nbytes == tensor.raw.size == (math.ceil(values.size / 2) if kind.endswith("4") else values.size)
    back = np.asarray(tensor)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)
    again = PackedTensor(tensor.packed(), kind, values.shape)
    np.testing.assert_array_equal(again.unpack(), values)


@given(st.binary(max_size=64), KINDS)
def test_any_bytes_are_values_and_come_back(data, kind):
    tensor = PackedTensor(data, kind, (len(data) * (2 if kind.endswith("4") else 1),))
    assert PackedTensor.pack(tensor.unpack(), kind).raw.tobytes() == data


@given(arrays(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6)), st.data())
def test_slices_are_views_like_numpys(case, data):
    kind, values = case
    tensor = PackedTensor.pack(values, kind)
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(tensor, PackedTensor):
            return
        if data.draw(st.booleans()):
            tensor, values = tensor.T, values.T
        key = data.draw(hnp.basic_indices(values.shape, allow_newaxis=True, max_dims=6))
        shared, tensor, values = tensor, tensor[key], values[key]
        if np.ndim(values):
            assert tensor.raw is shared.raw
            assert tensor.shape == values.shape
        else:
            assert type(tensor) is int
        np.testing.assert_array_equal(np.asarray(tensor), values)
    if isinstance(tensor, PackedTensor):
        assert PackedTensor(tensor.packed(), kind, tensor.shape).unpack().tolist() == values.tolist()


@given(arrays(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6)), st.data())
def test_indices_and_masks_choose_like_numpys(case, data):
    kind, values = case
    tensor = PackedTensor.pack(values, kind)
    indices = data.draw(hnp.integer_array_indices(values.shape))
    np.testing.assert_array_equal(tensor[indices], values[indices])
    mask = data.draw(hnp.arrays(np.bool_, values.shape))
    np.testing.assert_array_equal(tensor[mask], values[mask])


@given(arrays(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6)), st.data())
def test_writing_changes_what_is_named_and_nothing_else(case, data):
    kind, values = case
    tensor, values = PackedTensor.pack(values, kind), values.copy()
    whole = tensor
    if data.draw(st.booleans()):
        tensor, view = tensor[::-1], values[::-1]
    else:
        tensor, view = tensor.T, values.T
    key = data.draw(hnp.basic_indices(view.shape) | hnp.arrays(np.bool_, view.shape))
    low, high = RANGES[kind]
    new = data.draw(hnp.arrays(values.dtype, np.shape(view[key]), elements=st.integers(low, high)))
    tensor[key] = new
    view[key] = new
    np.testing.assert_array_equal(np.asarray(whole), values)


def test_the_first_value_is_the_low_half():
    tensor = PackedTensor.pack([[1, 2, 3], [4, 5, -6]], "int4")
    assert tensor.raw.tolist() == [0x21, 0x43, 0xA5]
    assert [tensor[0, 1], tensor[1, 2], tensor[-1][-1]] == [2, -6, -6]
    assert tensor[1].raw is tensor.raw
    assert not tensor[1].is_contiguous, "a row that begins within a byte"
    assert tensor[1].packed().tolist() == [0x54, 0x0A]
    assert tensor[:, 1:].unpack().tolist() == [[2, 3], [5, -6]]


def test_a_mapped_file_is_viewed_where_it_is(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(100)))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    tensor = PackedTensor(mapped, "uint4", (4, 8), offset=16)
    assert tensor[0, :4].unpack().tolist() == [0, 1, 1, 1]
    tensor[1, 1] = 15
    mapped.flush()
    assert path.read_bytes()[20] == 20 & 15 | 15 << 4
    packed = tensor.packed()
    assert np.shares_memory(packed, tensor.raw)
    with pytest.raises(BufferError):
        mapped.close()


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_whole_bytes_unpack_without_a_copy(kind):
    data = np.arange(12, dtype=np.uint8)
    tensor = PackedTensor(data, kind, (3, 4))
    assert np.shares_memory(tensor.unpack(), data)
    assert np.shares_memory(np.asarray(tensor), data)
    assert not np.shares_memory(np.array(tensor), data)


def test_arrays_are_made_as_numpy_asks():
    tensor = PackedTensor.pack([1, -2, 3], "int4")
    assert np.asarray(tensor, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        np.array(tensor, copy=False)
    assert (np.asarray(tensor) + 1).tolist() == [2, -1, 4]


def test_dlpack_shares_the_bytes():
    whole = PackedTensor.pack(np.arange(12, dtype=np.int8).reshape(3, 4), "int8")
    shared = np.from_dlpack(whole)
    assert (shared.dtype, shared.shape) == (np.int8, (3, 4))
    assert np.shares_memory(shared, whole.raw)
    half = PackedTensor.pack(np.arange(12).reshape(3, 4), "uint4")
    packed = np.from_dlpack(half[1:])
    assert packed.tolist() == [0x54, 0x76, 0x98, 0xBA]
    assert np.shares_memory(packed, half.raw)
    back = PackedTensor.from_dlpack(packed, "uint4", (2, 4))
    np.testing.assert_array_equal(back.unpack(), half[1:].unpack())
    assert np.shares_memory(back.raw, half.raw)
    with pytest.raises(BufferError, match="contiguous"):
        np.from_dlpack(half[:, 1:])


def test_read_only_bytes_stay_so():
    tensor = PackedTensor(b"\x10\x32", "uint4", (4,))
    with pytest.raises(InvalidInput, match="read-only"):
        tensor[0] = 1
    assert np.asarray(tensor).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PackedTensor(b"1234", "int3", (4,)), "expected one of int4, uint4, int8, uint8; got 'int3'"),
        (lambda: PackedTensor(b"1234", "int4", (9,)), r"int4 values of the shape \[9\] take 5 bytes from 0 on; got 4"),
        (lambda: PackedTensor(b"1234", "int8", (2,), 3), r"int8 .* take 2 bytes from 3 on; got 4"),
        (lambda: PackedTensor(b"1234", "int8", (-1,)), r"shape \[-1\]"),
        (lambda: PackedTensor(b"1234", "int8", (2,), -1), "from -1 on"),
        (lambda: PackedTensor(b"1", "int8", (2**40, 2**40)), r"take 1208925819614629174706176 bytes"),
        (lambda: PackedTensor("text", "int8", (2,)), "expected bytes or what has a buffer, got str"),
        (lambda: PackedTensor(np.zeros((4, 4), np.uint8)[:, ::2], "int8", (2,)), "contiguous"),
        (lambda: PackedTensor(memoryview(b"1234")[::2], "int8", (2,)), "contiguous"),
        (lambda: PackedTensor.pack([8], "int4"), "from -8 to 7 for int4, got int64 from 8 to 8"),
        (lambda: PackedTensor.pack([-1], "uint8"), "from 0 to 255"),
        (lambda: PackedTensor.pack([1.0], "int8"), "got float64 from 1.0 to 1.0"),
        (lambda: PackedTensor.pack(["a"], "int8"), "expected whole numbers"),
        (lambda: PackedTensor.pack([1, 2], "int8").__setitem__(0, 300), "from -128 to 127"),
        (lambda: PackedTensor.pack([1, 2], "int8").__setitem__(slice(None), [1, 2, 3]), r"\[3\] do not fit \[2\]"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize("key", [2, (0, 3), (0, 0, 0), -3])
def test_places_outside_are_no_elements(key):
    with pytest.raises(IndexError):
        PackedTensor.pack([[1, 2, 3], [4, 5, 6]], "int4")[key]


def test_iteration_ends():
    assert [[int(x) for x in row] for row in PackedTensor.pack([[1, 2], [3, 4]], "int4")] == [[1, 2], [3, 4]]
    assert len(PackedTensor.pack([[1, 2], [3, 4], [5, 6]], "int4")) == 3
    with pytest.raises(TypeError):
        len(PackedTensor.pack(1, "int4"))
