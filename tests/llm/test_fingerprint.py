"""What a model's files hold decides the key of its weights, and is read once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import LoadFailed
from headrace.llm.fingerprint import fingerprint
from headrace.llm.weights import WeightCache


def _old_file(path, content):
    path.write_bytes(content)
    os.utime(path, (1, 1))
    return path


def test_content_decides_not_the_name(tmp_path):
    a, b = (_old_file(tmp_path / name, b"same") for name in "ab")
    other = _old_file(tmp_path / "c", b"diff")
    memory = tmp_path / "memory"
    assert fingerprint([a], memory) == fingerprint([str(b)], memory)
    assert fingerprint([a], memory) != fingerprint([other], memory)
    assert fingerprint([a, other], memory) != fingerprint([other, a], memory)


def test_layouts_have_keys_of_their_own(tmp_path):
    cache = WeightCache(tmp_path / "cache", 1 << 30)
    path = _old_file(tmp_path / "a", b"weights")
    assert cache.key([path], "v1") == cache.key([path], "v1")
    assert cache.key([path], "v1") != cache.key([path], "v2")


def test_a_file_is_read_once(tmp_path, monkeypatch):
    path, memory = _old_file(tmp_path / "a", b"weights"), tmp_path / "memory"
    monkeypatch.setattr("headrace.llm.fingerprint._SETTLED_NS", -1)
    first = fingerprint([path], memory)
    (note,) = memory.iterdir()
    read = []
    monkeypatch.setattr("headrace.llm.fingerprint._digest_of", lambda file: read.append(file) or "0" * 64)
    assert fingerprint([path], memory) == first
    assert not read
    note.write_text(note.read_text()[:-3])  # garbled: not believed
    assert fingerprint([path], memory) != first
    assert len(read) == 1


def test_what_changed_just_now_is_not_remembered(tmp_path):
    path, memory = tmp_path / "a", tmp_path / "memory"
    path.write_bytes(b"one")
    first = fingerprint([path], memory)
    assert not memory.exists()
    path.write_bytes(b"two")
    assert fingerprint([path], memory) != first


def test_a_change_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.llm.fingerprint._SETTLED_NS", -1)
    path, memory = _old_file(tmp_path / "a", b"one"), tmp_path / "memory"
    first = fingerprint([path], memory)
    path.write_bytes(b"two")
    os.utime(path, (2, 2))
    assert fingerprint([path], memory) != first


def test_a_place_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    path = _old_file(tmp_path / "a", b"one")
    assert fingerprint([path], Path("/proc/none")) == fingerprint([path], tmp_path / "memory")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LoadFailed, match="gone: cannot be read: No such file"):
        fingerprint([tmp_path / "gone"], tmp_path)
