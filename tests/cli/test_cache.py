"""`headrace cache` tells what weights are kept and lets them go."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.llm.weights import WeightCache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one model's weights, which the environment names."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "1000000")
    cache = WeightCache()
    cache.open("abc", lambda writer: writer.write("w", np.arange(5000, dtype=np.uint8)), label="tiny.gguf")
    return cache


def _run(*arguments, status=0):
    result = CliRunner().invoke(app, ["cache", *arguments])
    assert result.exit_code == status, result.output + str(result.exception)
    return result.output


@pytest.mark.parametrize("command", [[], ["list"]])
def test_what_is_kept_is_listed(cache, command):
    lines = _run(*command).splitlines()
    assert lines[0].split() == ["KEY", "SIZE", "USED", "MODEL"]
    assert lines[1].startswith("abc")
    assert lines[1].endswith("tiny.gguf")
    report = json.loads(_run(*command, "--json"))
    assert (report["folder"], report["limit_bytes"]) == (str(cache.folder), 1_000_000)
    (row,) = report["weights"]
    assert (row["key"], row["model"], row["size_bytes"]) == ("abc", "tiny.gguf", cache.entries()[0].size_bytes)


def test_sizes_and_the_folder_are_told(cache):
    size = cache.entries()[0].size_bytes
    assert json.loads(_run("size", "--json")) == {"size_bytes": size, "limit_bytes": 1_000_000}
    assert "of at most 1 MB" in _run("size")
    assert _run("path").strip() == str(cache.folder)


def test_clearing_frees_it(cache):
    size = cache.entries()[0].size_bytes
    assert json.loads(_run("clear", "--json")) == {"freed_bytes": size}
    assert "no weights in" in _run()
    assert "freed 0 B" in _run("clear")


def test_damage_is_found_and_removed(cache):
    assert "all weights are sound (1 file)" in _run("verify")
    path = cache.entries()[0].path
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    report = json.loads(_run("verify", "--json", status=1))
    assert report["verified"] == 0
    assert "blob 'w' is not what was written" in report["damaged"][0]["error"]
    assert not path.exists()
    assert json.loads(_run("verify", "--json")) == {"verified": 0, "damaged": []}


def test_damage_is_told(cache):
    path = cache.entries()[0].path
    path.write_bytes(path.read_bytes()[:-1])
    assert "(damaged)" in _run()
    assert "removed" in _run("verify", status=1)


def test_a_bad_limit_names_its_setting(cache, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "lots")
    result = CliRunner().invoke(app, ["cache"])
    assert result.exit_code == 1
    assert "HEADRACE_CACHE_BYTES: expected a whole number of bytes, got 'lots'" in str(result.exception)
