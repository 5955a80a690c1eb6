"""Numbers between JSON text and arrays: the reference is Python's own `json` with NumPy."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.core.json_numbers import format_numbers, parse_numbers
from headrace.errors import InvalidInput

FLOATS = [np.dtype(kind) for kind in ("f2", "f4", "f8")]
INTEGERS = [np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


def arrays(dtypes):
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: hnp.arrays(dtype, shapes, elements=hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False))
    )


@given(arrays(FLOATS + INTEGERS), st.booleans())
def test_reads_what_json_wrote(array, nested):
    text = json.dumps(array.tolist() if nested else array.ravel().tolist()).encode()
    got = parse_numbers(text, array.shape, array.dtype)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


@given(arrays(FLOATS + INTEGERS))
def test_json_reads_what_it_writes(array):
    text = format_numbers(array)
    got = np.array(json.loads(text), array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(parse_numbers(text, array.shape, array.dtype), array)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_rounds_as_numpy_does(values):
    with np.errstate(over="ignore"):
        wanted = np.array(values, np.float32)
    text = json.dumps(values).encode()
    if np.isinf(wanted).any():
        with pytest.raises(InvalidInput, match="in range of the datatype"):
            parse_numbers(text, wanted.shape, wanted.dtype)
    else:
        np.testing.assert_array_equal(parse_numbers(text, wanted.shape, wanted.dtype), wanted)


def test_the_edge_of_float32():
    last = float(np.finfo(np.float32).max)
    middle = (last + 2.0**128) / 2  # half a step above the maximum, which rounds away
    for value in (last, np.nextafter(middle, 0)):
        assert parse_numbers(json.dumps([value]).encode(), (1,), FLOATS[1])[0] == np.float32(last)
    for value in (middle, -middle, 1e39):
        with pytest.raises(InvalidInput, match="in range"):
            parse_numbers(json.dumps([value]).encode(), (1,), FLOATS[1])


def test_what_json_lacks_becomes_null_and_floats_stay_floats():
    assert format_numbers(np.array([np.nan, np.inf, -np.inf, 5, 0.1], np.float32)) == b"[null,null,null,5.0,0.1]"
    assert format_numbers(np.array([[1, 2], [3, 4]], np.int8).T) == b"[1,3,2,4]"


@pytest.mark.parametrize(
    ("text", "dtype", "said"),
    [
        (b'[1, "a"]', "f4", "expected a number, got '\"a\"' at byte 4"),
        (b"[1, 2.5]", "i4", "expected an integer, got '2.5' at byte 4"),
        (b"[1, 300]", "u1", "in range of the datatype, got '300'"),
        (b"[1]", "f4", "takes 2 elements, `data` has 1"),
        (b"[1,2,3]", "f4", "takes 2 elements, `data` has more"),
        (b"[1,2", "f4", r"expected ',' or '\]', got the end at byte 4"),
        (b"{}", "f4", "expected an array"),
        (b"[1e5, 7]", "f2", "65504"),
    ],
)
def test_faults_are_located(text, dtype, said):
    with pytest.raises(InvalidInput, match=said):
        parse_numbers(text, (2,), np.dtype(dtype))


@given(st.text('[]0123456789.eE+-, nulltrue"', max_size=30), st.sampled_from(["f4", "f8", "i4", "u8"]))
def test_accepts_nothing_that_json_refuses(text, dtype):
    try:
        got = parse_numbers(text.encode(), (2,), np.dtype(dtype))
    except InvalidInput:
        return
    np.testing.assert_array_equal(got, np.array(json.loads(text), got.dtype))
