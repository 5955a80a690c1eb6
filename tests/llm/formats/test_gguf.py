"""What is written in a GGUF file is what is read, and what the `gguf` package reads."""

from __future__ import annotations

import gc
import os

import gguf
import numpy as np
import pytest

from headrace.errors import LoadFailed
from headrace.llm.formats import open_checkpoint
from headrace.llm.formats.types import TENSOR_TYPES
from headrace.testing.gguf import encode_gguf, write_gguf, write_split_gguf


def _same(ours, theirs):
    if isinstance(theirs, list | np.ndarray):
        return len(ours) == len(theirs) and all(a == b for a, b in zip(ours, theirs, strict=True))
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_all_of_a_file_is_read(tmp_path, metadata, tensors, version, alignment):
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors, version=version, alignment=alignment)
    model = open_checkpoint(path)
    assert (model.path, model.files) == (str(path), (str(path),))
    for key, value in metadata.items():
        expected = value.item() if isinstance(value, np.generic) else value
        assert _same(model.metadata[key], expected), key
    assert list(model.tensors) == list(tensors)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, (kind, values) in tensors.items():
        tensor, theirs = model.tensors[name], reference[name]
        assert (tensor.name, tensor.type, tensor.shape) == (name, kind, values.shape)
        assert TENSOR_TYPES[kind].number == theirs.tensor_type
        assert tensor.data.tobytes() == theirs.data.tobytes()
        np.testing.assert_array_equal(model.dequantise(name), gguf.dequantize(theirs.data, theirs.tensor_type))


def test_metadata_is_what_the_package_reads(tmp_path, metadata, tensors):
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    model = open_checkpoint(path)
    fields = gguf.GGUFReader(path).fields
    assert [key for key in fields if not key.startswith("GGUF.")] == list(model.metadata)
    for key, value in model.metadata.items():
        if len(fields[key].types) > 1 or key != "empty":
            assert _same(value, fields[key].contents()), key


def test_tensors_are_views_and_cannot_be_written(tmp_path, metadata, tensors):
    model = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    data = model.tensors["w.Q4_1"].data
    assert not data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def test_a_view_outlives_its_file(tmp_path, metadata, tensors):
    model = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    data, texts = model.tensors["w.Q8_0"].data, model.metadata
    before = data.tobytes()
    model.close()
    model.close()
    gc.collect()
    assert data.tobytes() == before
    assert texts["texts"] == metadata["texts"]
    assert model.tensors == {}
    with pytest.raises(LoadFailed, match="has no tensor"):
        model.dequantise("w.Q8_0")


def test_a_closed_file_is_unmapped_once_nothing_views_it(tmp_path, metadata, tensors):
    path = write_gguf(tmp_path / "unmapped.gguf", metadata, tensors)
    model = open_checkpoint(path)
    assert path.name in _maps()
    model.close()
    del model
    gc.collect()
    assert path.name not in _maps()


def _maps():
    with open(f"/proc/{os.getpid()}/maps") as maps:
        return maps.read()


def test_a_model_of_vocabulary_alone_is_read(tmp_path, metadata):
    assert open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, {})).tensors == {}


def test_text_that_is_not_utf8_is_refused_where_it_is_used(tmp_path, metadata, tensors):
    data = encode_gguf({**metadata, "bad": ["ok", "??bad"]}, tensors).replace(b"??bad", b"\xff\xfebad")
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    model = open_checkpoint(path)
    assert model.metadata["texts"] == metadata["texts"]
    with pytest.raises(LoadFailed, match=rf"at byte {data.index(b'bad', data.index(b'ok')) - 2}: 'bad': text 1 is not"):
        model.metadata["bad"]


@pytest.mark.parametrize("part", [0, 1, 2])
def test_any_part_of_a_split_file_opens_all(tmp_path, metadata, tensors, part):
    paths = write_split_gguf(tmp_path, "tiny", metadata, tensors, 3)
    model = open_checkpoint(paths[part])
    assert set(model.tensors) == set(tensors)
    assert model.files == tuple(map(str, paths))
    assert model.metadata["general.name"] == metadata["general.name"]
    whole = open_checkpoint(write_gguf(tmp_path / "whole.gguf", metadata, tensors))
    for name in tensors:
        assert model.tensors[name].data.tobytes() == whole.tensors[name].data.tobytes()


def test_a_missing_part_is_named(tmp_path, metadata, tensors):
    paths = write_split_gguf(tmp_path, "tiny", metadata, tensors, 3)
    paths[1].unlink()
    with pytest.raises(LoadFailed, match=r"tiny-00002-of-00003\.gguf: cannot be read: No such file"):
        open_checkpoint(paths[0])


def test_parts_that_do_not_belong_together_are_refused(tmp_path, metadata, tensors):
    paths = write_split_gguf(tmp_path, "tiny", metadata, tensors, 2)
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(LoadFailed, match=r"expected split\.no 1 and split\.count 2, got 0 and 2"):
        open_checkpoint(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path, metadata, tensors):
    paths = write_split_gguf(tmp_path, "tiny", metadata, tensors, 2)
    again = {"split.no": np.uint16(1), "split.count": np.uint16(2)}
    write_gguf(paths[1], again, {"w.F32": tensors["w.F32"]})
    with pytest.raises(LoadFailed, match=r"tensor 'w\.F32' is in another part too"):
        open_checkpoint(paths[0])


def test_fewer_tensors_than_the_parts_announce_are_refused(tmp_path, metadata, tensors):
    paths = write_split_gguf(tmp_path, "tiny", metadata, tensors, 2)
    write_gguf(paths[1], {"split.no": np.uint16(1), "split.count": np.uint16(2)}, {"one": tensors["vector"]})
    with pytest.raises(LoadFailed, match=f"expected {len(tensors)} tensors in 2 parts, got"):
        open_checkpoint(paths[0])


def test_a_part_under_another_name_is_refused(tmp_path, metadata, tensors):
    paths = write_split_gguf(tmp_path, "tiny", metadata, tensors, 2)
    other = paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(LoadFailed, match=r"is a part of 2; expected a name that ends in -00001-of-00002\.gguf"):
        open_checkpoint(other)
