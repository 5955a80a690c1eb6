"""Repacked weights come back as they were written, outlive what happens to the disk, and stay within their limit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, IntegrityError, InvalidInput, LoadFailed
from headrace.llm.weight_file import ALIGNMENT, WeightFile
from headrace.llm.weights import DEFAULT_LIMIT_BYTES, WeightCache

BLOBS = {
    "blk.0.qkv": np.arange(5000, dtype=np.float32),
    "nothing": np.empty(0, np.uint8),
    "matrix ü": np.arange(12, dtype=np.int8).reshape(3, 4),
}


class Builder:
    """Builds `blobs`, counting how often."""

    def __init__(self, blobs=BLOBS):
        self.blobs, self.calls = blobs, 0

    def __call__(self, writer):
        self.calls += 1
        for name, data in self.blobs.items():
            writer.write(name, data)


@pytest.fixture
def cache(tmp_path):
    return WeightCache(tmp_path / "cache", 1 << 30)


def _assert_whole(file, blobs=BLOBS):
    assert list(file) == list(blobs)
    for name, data in blobs.items():
        blob = file[name]
        assert blob.tobytes() == data.tobytes()
        assert not blob.size or blob.ctypes.data % ALIGNMENT == 0
        assert not blob.flags.writeable


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_second_time_nothing_is_built(cache):
    build = Builder()
    for _ in range(3):
        file = cache.open("key", build, label="model.gguf")
        _assert_whole(file)
        file.verify()
        assert file.label == "model.gguf"
        assert file.array.size == Path(file.path).stat().st_size
    assert build.calls == 1
    assert _names(cache.folder) == ["key.pack"]
    assert cache.open("other", build).label == ""
    assert build.calls == 2


def test_blobs_outlive_their_file(cache):
    file = cache.open("key", Builder())
    blob = file["blk.0.qkv"]
    file.close()
    file.close()
    cache.clear()
    assert blob.tobytes() == BLOBS["blk.0.qkv"].tobytes()
    assert len(file) == 0


@pytest.mark.parametrize("key", ["", "a/b", "..", "a.b", "a b"])
def test_keys_are_plain(cache, key):
    with pytest.raises(InvalidInput, match="cache key"):
        cache.open(key, Builder())


def test_a_builder_that_fails_leaves_nothing(cache):
    def build(writer):
        writer.write("a", BLOBS["blk.0.qkv"])
        raise LoadFailed("no such tensor")

    with pytest.raises(LoadFailed, match="no such tensor"):
        cache.open("key", build)
    assert _names(cache.folder) == []


@pytest.mark.parametrize(
    ("blobs", "message"),
    [
        ([("a", np.zeros(2)), ("a", np.zeros(2))], "not taken"),
        ([("", np.zeros(2))], "not taken"),
        ([("a", np.zeros((4, 4))[:, ::2])], "C-contiguous"),
    ],
)
def test_a_builder_that_writes_nonsense_is_told(cache, blobs, message):
    with pytest.raises(InvalidInput, match=message):
        cache.open("key", lambda writer: [writer.write(*blob) for blob in blobs])


def test_the_least_recently_used_go_first(tmp_path):
    one = {"a": np.zeros(100_000, np.uint8)}
    cache = WeightCache(tmp_path, 350_000)
    for number, key in enumerate(["first", "second", "third"]):
        cache.open(key, Builder(one))
        os.utime(cache.folder / f"{key}.pack", (number, number))
    cache.open("first", Builder(one))  # used again
    cache.open("fourth", Builder(one))
    assert [entry.key for entry in cache.entries()] == ["fourth", "first", "third"]
    assert sum(entry.size_bytes for entry in cache.entries()) <= cache.limit_bytes


def test_entries_say_what_they_are(cache):
    cache.open("key", Builder(), label="a model \udcff")
    (entry,) = cache.entries()
    assert (entry.key, entry.label) == ("key", "a model \\udcff")
    assert entry.size_bytes == entry.path.stat().st_size


def _damage(path, kind):
    data = bytearray(path.read_bytes())
    if kind == "cut":
        data = data[:-1]
    elif kind == "longer":
        data += b"x"
    elif kind == "empty":
        data = bytearray()
    elif kind == "header":
        data[20] ^= 1
    elif kind == "magic":
        data[0] ^= 1
    elif kind == "index":
        data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["cut", "longer", "empty", "header", "magic", "index"])
def test_a_damaged_file_is_built_again(cache, kind, caplog):
    build = Builder()
    cache.open("key", build).close()
    _damage(cache.folder / "key.pack", kind)
    assert [entry.label for entry in cache.entries()] == [""]
    with caplog.at_level(logging.WARNING):
        _assert_whole(cache.open("key", build))
    assert build.calls == 2
    assert "built again" in caplog.text


def test_a_file_of_another_key_is_not_taken(cache):
    cache.open("key", Builder({"a": np.ones(3)})).close()
    (cache.folder / "key.pack").rename(cache.folder / "other.pack")
    build = Builder()
    _assert_whole(cache.open("other", build))
    assert build.calls == 1


def test_a_flipped_byte_of_a_blob_is_found_by_verifying(cache):
    build = Builder()
    cache.open("key", build).close()
    path = cache.folder / "key.pack"
    cache.verify("key")
    data = bytearray(path.read_bytes())
    data[ALIGNMENT + 100] ^= 1
    path.write_bytes(data)
    assert cache.open("key", build)["blk.0.qkv"].tobytes() != BLOBS["blk.0.qkv"].tobytes()
    with pytest.raises(IntegrityError, match=r"blob 'blk\.0\.qkv' is not what was written"):
        cache.verify("key")
    assert not path.exists()
    with pytest.raises(IntegrityError, match="cannot be read"):
        cache.verify("key")
    _assert_whole(cache.open("key", build))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_garbled_file_is_whole_or_refused(tmp_path, data):
    cache = WeightCache(tmp_path, 1 << 30)
    small = {"a": np.arange(3, dtype=np.uint8)}
    cache.open("key", Builder(small)).close()
    path = cache.folder / "key.pack"
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = st.one_of(st.integers(0, 63), st.integers(ALIGNMENT, len(whole) - 1))
        whole[data.draw(place)] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        file = WeightFile(path, "key")
        file.verify()
    except IntegrityError:
        return
    _assert_whole(file, small)


@pytest.mark.parametrize("place", ["file", "proc", "off", "small"])
def test_where_nothing_can_be_kept_it_works_in_memory(tmp_path, place, caplog):
    (tmp_path / "file").write_text("in the way")
    root = {"file": tmp_path / "file", "proc": Path("/proc/none")}.get(place, tmp_path / "cache")
    cache = WeightCache(root, {"off": 0, "small": 10_000}.get(place, 1 << 30))
    build = Builder()
    with caplog.at_level(logging.WARNING):
        file = cache.open("key", build, label="model.gguf")
    _assert_whole(file)
    file.verify()
    assert cache.entries() == []
    assert not list(root.rglob("*"))[1:] if root.is_dir() else True
    assert ("the weights of model.gguf are not kept" in caplog.text) == (place != "off")


def test_a_full_disk_costs_only_the_cache(tmp_path):
    """A process that may not write large files stands for a full disk."""
    script = textwrap.dedent(
        """
        import logging, resource, sys
        from pathlib import Path
        import numpy as np
        from headrace.llm.weights import WeightCache

        logging.basicConfig(level=logging.WARNING)
        cache = WeightCache(Path(sys.argv[1]), 1 << 30)
        soft = resource.getrlimit(resource.RLIMIT_FSIZE)
        data = np.arange(1 << 20, dtype=np.uint8)
        attempts = 0

        def build(writer):
            global attempts
            attempts += 1
            if attempts == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, soft)
            writer.write("a", data)

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, soft[1]))
        file = cache.open("key", build)
        assert attempts == 2 and (file["a"] == data).all()
        assert cache.entries() == [] and not list(cache.folder.iterdir()), list(cache.folder.iterdir())
        """
    )
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "are not kept: writing" in run.stderr
    assert "File too large" in run.stderr


def test_loaders_of_one_model_build_it_once(cache):
    build, files = Builder(), []
    start = threading.Barrier(6)

    def load():
        start.wait()
        files.append(WeightCache(cache.root, cache.limit_bytes).open("key", build))

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.calls == 1
    assert len(files) == 6
    for file in files:
        _assert_whole(file)
    assert _names(cache.folder) == ["key.pack"]


def test_clearing_takes_everything_but_what_is_being_written(cache):
    cache.open("key", Builder())
    (cache.folder / ".dead.write-123").write_bytes(b"left behind")

    def build(writer):
        assert cache.clear() > 20_000
        writer.write("a", np.ones(3))

    assert cache.open("living", build)["a"].tobytes() == np.ones(3).tobytes()
    assert _names(cache.folder) == ["living.pack"]


def test_settings_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.delenv("HEADRACE_CACHE_BYTES", raising=False)
    cache = WeightCache()
    assert (cache.root, cache.limit_bytes) == (tmp_path, DEFAULT_LIMIT_BYTES)
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "12345")
    assert WeightCache().limit_bytes == 12345
    for bad in ("12 GB", "-1", "1e9", "²"):
        monkeypatch.setenv("HEADRACE_CACHE_BYTES", bad)
        with pytest.raises(ConfigError, match="HEADRACE_CACHE_BYTES: expected a whole number of bytes"):
            WeightCache()
