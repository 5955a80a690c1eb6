"""The Open Inference Protocol codec: exact round trips, and every malformed request is refused by name."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.errors import InvalidInput
from headrace.serve.codec.bytestensor import pack_bytes, unpack_bytes
from headrace.serve.codec.oip import InferInput, InferRequest, decode, encode
from headrace.serve.tensors import DTYPES, datatype

NUMERIC = [dtype for dtype in DTYPES.values() if dtype.kind != "O"]


def body(*inputs, **extra):
    return json.dumps({"inputs": list(inputs), **extra}).encode()


def tensor(name="x", shape=(2,), kind="FP32", **fields):
    return {"name": name, "shape": list(shape), "datatype": kind, **fields}


arrays = st.sampled_from(NUMERIC).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)


@given(arrays, st.integers(0, 7))
def test_binary_tensors_come_back_bit_for_bit_at_any_alignment(array, pad):
    kind = datatype(array.dtype)
    raw = array.tobytes()
    head = body(tensor(shape=array.shape, kind=kind, parameters={"binary_data_size": len(raw)})) + b" " * pad
    _, tensors = decode(head + raw, str(len(head)))
    assert tensors["x"].dtype == array.dtype
    assert tensors["x"].shape == array.shape
    assert tensors["x"].tobytes() == raw
    assert tensors["x"].flags.aligned


@given(arrays)
def test_encoded_outputs_decode_to_the_same_array(array):
    request = InferRequest([], id="r", parameters={"binary_data_output": True})
    parts, headers = encode(request, "m", "1", {"x": array})
    head_length = headers.split(":")[1].strip()
    whole = b"".join(parts)
    answer = json.loads(whole[: int(head_length)])
    assert answer["id"] == "r"
    assert whole[int(head_length) :] == array.tobytes()
    assert answer["outputs"][0]["parameters"]["binary_data_size"] == array.nbytes


@given(hnp.arrays(np.int32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)), st.booleans())
def test_flat_and_nested_json_mean_the_same(array, nested):
    data = array.tolist() if nested else array.ravel().tolist()
    _, tensors = decode(body(tensor(shape=array.shape, kind="INT32", data=data)))
    np.testing.assert_array_equal(tensors["x"], array)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_tensors_round_trip(items):
    array = np.empty(len(items), object)
    array[:] = items
    packed = pack_bytes(array)
    assert unpack_bytes(memoryview(packed), len(items), "x").tolist() == items


@pytest.mark.parametrize(
    ("request_body", "said"),
    [
        (b"", "truncated"),
        (b"{", "body"),
        (b"[]", "Expected `object`"),
        (b"\xff\xfe", "body"),
        (b'{"inputs": [{"name": "x"}]}', "shape"),
        (body(tensor(kind="FP31", data=[1, 2])), "unknown datatype 'FP31'"),
        (body(tensor(shape=[-1], data=[1])), "negative"),
        (body(tensor(shape=[1 << 30, 1 << 30], data=[1])), "elements"),
        (body(tensor(shape=[1 << 62], data=[1])), "one above"),
        (body(tensor(shape=[1] * 33, data=[1])), "33 dimensions"),
        (body(tensor(shape=[2**64 - 1] * 100_000, data=[1])), "100000 dimensions"),
        (body(tensor(shape=[0, 2**62], data=[])), "one above"),
        (body(tensor(shape=[2**63 - 1] * 30, data=[1])), "one above"),
        (body(tensor(data=[1, 2]), outputs=[{"name": "y"}, {"name": "y"}]), "named twice"),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b', "inputs": []}', "nested too deeply"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"BOOL","data":[1e400]}]}', "out of range"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[' + b"9" * 6000 + b"]}]}", "in range"),
        (body(tensor(shape=[3], data=[1, 2])), "takes 3 elements, `data` has 2"),
        (body(tensor(data=[1, "a"])), "expected a number"),
        (body(tensor(kind="INT32", data=[1, 1.5])), r"inputs\[0\] \('x'\).data"),
        (body(tensor(kind="UINT8", data=[1, 300])), "in range of the datatype, got '300'"),
        (body(tensor(kind="BOOL", data=[1, 0])), "bool"),
        (body(tensor(shape=[2, 2], data=[[1, 2], [3]])), "rows in an axis|elements in the last axis"),
        (body(tensor(shape=[1, 2], data=[[[1], [2]]])), "expected a number"),
        (body(tensor()), "`data` is missing"),
        (body(tensor(data=[1, 2]), tensor(data=[1, 2])), "given twice"),
        (body(tensor(parameters={"binary_data_size": 8})), "header is missing"),
        (body(tensor(parameters={"shared_memory_region": "r"})), "shared memory"),
    ],
)
def test_malformed_requests_are_refused_by_name(request_body, said):
    with pytest.raises(InvalidInput, match=said):
        decode(request_body)


@pytest.mark.parametrize(
    ("size", "raw", "said"),
    [
        (8, b"1234", "4 bytes are left"),
        (4, b"1234", "takes 8 bytes, got 4"),
        (-1, b"", "binary_data_size -1"),
        (True, b"1", "binary_data_size True"),
        (8, b"12345678X", "1 bytes after"),
    ],
)
def test_binary_sizes_must_fit(size, raw, said):
    head = body(tensor(parameters={"binary_data_size": size}))
    with pytest.raises(InvalidInput, match=said):
        decode(head + raw, str(len(head)))


@pytest.mark.parametrize("length", ["²", "-1", "x", "99999", "1e3", "9" * 30])
def test_the_json_length_must_lie_in_the_body(length):
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        decode(body(tensor(data=[1, 2])), length)


@given(st.binary(max_size=200), st.text(max_size=5))
def test_no_bytes_crash_the_decoder(data, length):
    try:
        decode(data, length)
    except InvalidInput:
        return
    assert json.loads(data)  # what is accepted is at least JSON


@given(st.binary(max_size=40), st.integers(0, 5))
def test_no_bytes_crash_the_bytes_tensor(data, count):
    try:
        elements = unpack_bytes(memoryview(data), count, "x")
    except InvalidInput:
        return
    assert pack_bytes(elements) == data


def test_an_unknown_output_is_refused_and_the_known_ones_are_named():
    request = InferRequest([], outputs=[InferInput("nope", [], "FP32")])
    with pytest.raises(InvalidInput, match="no output 'nope'; the model has y"):
        encode(request, "m", "1", {"y": np.zeros((1, 2), np.float32)})
