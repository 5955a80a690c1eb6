"""A GGUF file is an untrusted input: whatever is wrong with it is said, and nothing worse happens."""

from __future__ import annotations

import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import LoadFailed
from headrace.llm.formats import open_checkpoint
from headrace.testing.gguf import encode_gguf, write_gguf

U64 = struct.Struct("<Q")


def _text(text):
    return U64.pack(len(text.encode())) + text.encode()


def _head(n_tensors=0, n_keys=0, version=3):
    return struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys)


def _record(name="w", dims=(32,), kind=0, offset=0):
    return _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def _array(kind, count, body=b""):
    return _head(n_keys=1) + _text("key") + struct.pack("<IIQ", 9, kind, count) + body


def _file(*records, data=bytes(256)):
    head = _head(n_tensors=len(records)) + b"".join(records)
    return head + bytes(-len(head) % 32) + data


BAD = {
    "nothing": (b"", "is empty"),
    "another magic": (b"GGML" + bytes(60), "expected a GGUF file, .* begins with b'GGML"),
    "three bytes": (b"GGU", "expected a GGUF file, .* begins with b'GGU'"),
    "version 1": (_head(version=1), "at byte 4: expected GGUF version 2 or 3, got 1"),
    "version 4": (_head(version=4), "at byte 4: expected GGUF version 2 or 3, got 4"),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "the file is big-endian; expected little-endian"),
    "absurd tensors": (
        _head(n_tensors=2**63),
        "at byte 8: expected at most 131072 tensors, .* got 9223372036854775808",
    ),
    "absurd keys": (_head(n_keys=2**64 - 1), "at byte 16: expected at most 65536 keys"),
    "more tensors than fit": (_head(n_tensors=3) + bytes(64), "only what fits 72 bytes; got 3"),
    "no key": (_head(n_keys=1) + _text("") + bytes(32), "expected a key, got an empty text"),
    "long key": (_head(n_keys=1) + U64.pack(2**40) + bytes(32), "expected at most 65535 bytes of a key"),
    "key twice": (_head(n_keys=2) + 2 * (_text("a") + struct.pack("<IB", 0, 1)) + bytes(9), "key 'a' is there twice"),
    "unknown type": (_head(n_keys=1) + _text("a") + struct.pack("<I", 13) + bytes(9), "'a': expected a type from 0 to"),
    "bool of 2": (_head(n_keys=1) + _text("a") + struct.pack("<IB", 7, 2), "'a': expected a bool, 0 or 1, got 2"),
    "not UTF-8": (_head(n_keys=1) + U64.pack(2) + b"\xff\xfe" + bytes(9), "at byte 32: a key is not UTF-8"),
    "cut value": (
        _head(n_keys=1) + _text("abc") + struct.pack("<IH", 4, 1),
        "file ends within 'abc': expected 4 bytes",
    ),
    "huge array": (_array(4, 2**62, bytes(64)), "'key', and only what fits 64 bytes; got 4611686018427387904"),
    "huge texts": (_array(8, 2**61, bytes(64)), "texts of 'key', and only what fits 64 bytes"),
    "text runs out": (_array(8, 2, _text("a") + U64.pack(2**63)), "'key': the file ends within text 1 of 2"),
    "text length wraps": (_array(8, 1, U64.pack(2**64 - 8)), "'key': the file ends within text 0 of 1"),
    "array of arrays": (_array(9, 1, struct.pack("<IQ", 9, 1) * 1000), "'key': is an array of arrays"),
    "array of unknown": (_array(77, 1, bytes(64)), "'key': expected elements of a type from 0 to 12, got 77"),
    "alignment 0": (encode_gguf({"general.alignment": 0}, {}), "general.alignment: expected a power of two from 8"),
    "alignment 48": (encode_gguf({"general.alignment": 48}, {}), "general.alignment: expected a power of two from 8"),
    "alignment 2^30": (encode_gguf({"general.alignment": 2**30}, {}), "power of two from 8 to 1048576, got 1073741824"),
    "alignment text": (encode_gguf({"general.alignment": "32"}, {}), "general.alignment: .* got '32'"),
    "no name": (_file(_record("")), "expected a name and 1 to 4 dimensions"),
    "long name": (_file(_record("n" * 300)), "at most 255 bytes of a tensor's name"),
    "name twice": (_file(_record(), _record(offset=128)), "tensor 'w' is there twice"),
    "no dimension": (_file(_record(dims=())), "tensor 'w': expected a name and 1 to 4 dimensions, got 0"),
    "five dimensions": (_file(_record(dims=(1, 1, 1, 1, 1))), "1 to 4 dimensions, got 5"),
    "2^32 - 1 dimensions": (_head(1) + _text("w") + b"\xff" * 4 + bytes(64), "1 to 4 dimensions, got 4294967295"),
    "zero dimension": (_file(_record(dims=(32, 0))), r"tensor 'w': expected F32 rows .*, got dimensions \[32, 0\]"),
    "huge dimension": (_file(_record(dims=(2**62,))), r"tensor 'w' of F32 \[4611686018427387904\] takes the bytes"),
    "dimensions that wrap": (_file(_record(dims=(2**32, 2**32, 1))), "tensor 'w' of F32 .* the file has"),
    "part of a block": (_file(_record(dims=(33,), kind=3)), r"expected Q4_1 rows of whole blocks of 32, got .*\[33\]"),
    "refused type": (_file(_record(kind=23)), "tensor 'w' has the type IQ4_XS; expected one of F32, F16"),
    "unknown number": (_file(_record(kind=999)), "tensor 'w' has the type number 999"),
    "misaligned": (_file(_record(offset=4)), "tensor 'w': offset 4 is no multiple of 32"),
    "offset overflow": (
        _file(_record(offset=2**64 - 32)),
        "tensor 'w' of F32 .* takes the bytes from 18446744073709551",
    ),
    "overlap": (_file(_record(), _record("v", offset=96)), "tensor 'v' at offset 96 lies over 'w'"),
    "same place": (_file(_record(), _record("v")), "lies over"),
    "cut data": (_file(_record(), data=bytes(127)), r"tensor 'w' .* from 64 to 192; the file has 191"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_is_refused_with_its_fault(tmp_path, fault):
    data, message = BAD[fault]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(LoadFailed, match=message) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(str(path))


def test_overlap_is_found_after_everything_else_is_in_order(tmp_path):
    path = tmp_path / "good.gguf"
    path.write_bytes(_file(_record(), _record("v", offset=128)))
    assert list(open_checkpoint(path).tensors) == ["w", "v"]


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "gone.gguf")
    for name, message in {"pipe.gguf": "regular file", "link.gguf": "No such file", "no.gguf": "No such file"}.items():
        with pytest.raises(LoadFailed, match=message):
            open_checkpoint(tmp_path / name)
    with pytest.raises(LoadFailed, match="regular file"):
        open_checkpoint("/dev/zero")


def _use(path):
    """Open, and touch whatever there is; True if the file was good."""
    message = ""
    try:
        model = open_checkpoint(path)
        for key in model.metadata:
            assert model.metadata[key] is not None
        for name in model.tensors:
            model.dequantise(name)
    except LoadFailed as error:
        message = str(error)
    assert not message or message.startswith(str(path.parent))
    return not message


def test_a_file_cut_anywhere_is_refused(tmp_path, metadata, tensors):
    whole = encode_gguf(metadata, tensors)
    last = 2 * 3 * 34  # the last tensor's bytes; padding follows
    end = len(whole) - (-last % 32)
    path = tmp_path / "cut.gguf"
    for size in [*range(1, 2500, 7), *range(2500, end, 101), end - 1]:
        path.write_bytes(whole[:size])
        assert not _use(path), f"cut at {size} of {len(whole)}"
    path.write_bytes(whole[:end])
    assert _use(path)


EXTREMES = [0, 1, 31, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


@pytest.fixture(scope="module")
def whole():
    """A file whose header is most of it, so that a random byte is likely to matter."""
    keys = {
        "general.architecture": "llama",
        "n": 3,
        "texts": ["a", "bc"],
        "scores": [0.5, 1.0],
        "on": True,
        "s": "text",
    }
    rows = np.arange(64, dtype=np.float32).reshape(2, 32)
    return encode_gguf(keys, {"a": ("F32", rows), "b": ("Q4_1", rows), "c": ("F16", rows)})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_garbled_bytes_never_do_worse_than_fail(tmp_path, whole, data):
    garbled = bytearray(whole)
    header = len(whole) - 512
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, header), st.integers(0, 255)), max_size=6)):
        garbled[at] = value
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, header), st.sampled_from(EXTREMES)), max_size=2)):
        garbled[at : at + 8] = U64.pack(value)
    path = tmp_path / "garbled.gguf"
    path.write_bytes(bytes(garbled[: data.draw(st.integers(1, len(garbled)))]))
    tracemalloc.start()
    try:
        _use(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "a small file made the reader take much memory"
    finally:
        tracemalloc.stop()


def test_every_byte_of_the_header_may_be_anything(tmp_path, whole):
    path = tmp_path / "flipped.gguf"
    outcomes = set()
    for at in range(len(whole) - 512):
        for flip in (0x01, 0x80, 0xFF):
            garbled = bytearray(whole)
            garbled[at] ^= flip
            path.write_bytes(bytes(garbled))
            outcomes.add(_use(path))
    assert outcomes == {True, False}


def test_a_whole_file_of_one_value_is_refused(tmp_path):
    for value in range(0, 256, 15):
        path = tmp_path / "same.gguf"
        path.write_bytes(b"GGUF\x03\0\0\0" + bytes([value]) * 5000)
        assert not _use(path) or value == 0


def test_many_texts_are_walked_but_not_kept(tmp_path):
    words = [f"word{i}" for i in range(50_000)]
    path = write_gguf(tmp_path / "words.gguf", {"tokenizer.ggml.tokens": words}, {})
    tracemalloc.start()
    model = open_checkpoint(path)
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 2 << 20, "opening decoded the vocabulary"
    assert model.metadata["tokenizer.ggml.tokens"] == words
