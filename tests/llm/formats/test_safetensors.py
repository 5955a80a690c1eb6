"""safetensors files are read as their package writes them; any that it would not write is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from headrace.errors import LoadFailed
from headrace.llm.formats.mapped import MappedFile
from headrace.llm.formats.safetensors import is_safetensors, read_safetensors

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
    "scalar": np.array(3, np.int64),
    "none": np.empty((0, 4), np.uint8),
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors", {"format": "pt"})
    return tmp_path / "m.safetensors"


def test_all_of_a_file_is_read_without_a_copy(path):
    found = read_safetensors(MappedFile(path))
    reference = load_file(path)
    assert found.keys() == reference.keys() == TENSORS.keys()
    for name, raw in found.items():
        assert raw.shape == reference[name].shape
        assert raw.data.tobytes() == reference[name].tobytes()
        assert not raw.data.flags.owndata
    assert found["a"].dtype == "F32"
    assert is_safetensors(path.read_bytes()[:16])


def _entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def _write(path, header, data=bytes(8)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


BAD = {
    "no object": ([], "expected a JSON object as header, got list"),
    "not JSON": (b"{a", "the header is not JSON"),
    "not UTF-8": (b'{"\xff":1}', "the header is not JSON"),
    "deep": (b"[" * 200_000, "the header is not JSON"),
    "long number": (b'{"a":' + b"9" * 10_000 + b"}", "the header is not JSON"),
    "twice": (b'{"a":1,"a":2}', "'a' is there twice"),
    "no entry": ({"a": 1}, "tensor 'a': expected dtype, shape and data_offsets, got 1"),
    "extra key": ({"a": _entry() | {"x": 1}}, "expected dtype, shape and data_offsets"),
    "dtype": ({"a": _entry("F4")}, "tensor 'a': expected a dtype of .* got 'F4'"),
    "dtype list": ({"a": _entry(["F32"])}, "tensor 'a': expected a dtype"),
    "negative shape": ({"a": _entry(shape=(-2,))}, "expected a shape of up to 8 whole numbers"),
    "bool shape": ({"a": _entry(shape=(True,))}, "expected a shape"),
    "float shape": ({"a": _entry(shape=(2.0,))}, "expected a shape"),
    "many dimensions": ({"a": _entry(shape=(1,) * 9)}, "expected a shape"),
    "huge": ({"a": _entry(shape=(2**62, 2**62))}, "takes .* bytes, got 8"),
    "falling": ({"a": _entry(offsets=(8, 0))}, "expected two rising offsets up to 8"),
    "outside": ({"a": _entry(shape=(4,), offsets=(0, 16))}, "expected two rising offsets up to 8"),
    "three offsets": ({"a": _entry(offsets=(0, 4, 8))}, "expected two rising offsets"),
    "short": ({"a": _entry(shape=(1,))}, r"tensor 'a' of F32 \[1\] takes 4 bytes, got 8"),
    "gap": ({"a": _entry(shape=(1,), offsets=(4, 8))}, "tensor 'a' begins at 4 of the data; expected 0"),
    "overlap": ({"a": _entry(), "b": _entry(shape=(1,), offsets=(4, 8))}, "tensor 'b' begins at 4 .* expected 8"),
    "rest": ({"a": _entry(shape=(1,), offsets=(0, 4))}, "the tensors end at 4 of the data; expected 8"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_is_refused_with_its_fault(tmp_path, fault):
    header, message = BAD[fault]
    _write(tmp_path / "bad.safetensors", header)
    with pytest.raises(LoadFailed, match=message) as caught:
        read_safetensors(MappedFile(tmp_path / "bad.safetensors"))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1234", "expected 8 bytes for the header's length, the file has 4"),
        (b"\xff" * 20, "expected a header of at most 12 bytes, got 18446744073709551615"),
        ((10**9).to_bytes(8, "little") + b"{}", "expected a header of at most 2 bytes, got 1000000000"),
    ],
)
def test_an_absurd_length_is_refused(tmp_path, data, message):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(LoadFailed, match=message):
        read_safetensors(MappedFile(tmp_path / "bad"))


def test_a_file_cut_anywhere_is_refused(path):
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(LoadFailed):
            read_safetensors(MappedFile(path))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), min_size=1, max_size=4))
def test_garbled_bytes_never_do_worse_than_fail(tmp_path, edits):
    path = tmp_path / "m.safetensors"
    save_file(TENSORS, path)
    garbled = bytearray(path.read_bytes())
    for at, value in edits:
        garbled[at] = value
    path.write_bytes(garbled)
    try:
        found = read_safetensors(MappedFile(path))
    except LoadFailed:
        return
    assert sum(raw.data.size for raw in found.values()) <= len(garbled)
