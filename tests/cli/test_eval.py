"""`headrace eval` says what the functions find, for each executor, and what is wrong with a text it cannot read."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import InvalidInput
from headrace.testing.language import save_language_model

TEXT = "The quick brown fox jumps over the lazy dog. 0123456789, and again: the quick brown fox."


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    model = save_language_model(tmp_path / "tiny.gguf", kind="F32")
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")

    def call(what, *options, text="text.txt"):
        line = ["eval", what, str(model), "--text", str(tmp_path / text), "--context", "32", *options]
        result = CliRunner().invoke(app, line, catch_exceptions=True)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        assert result.stderr == ""  # nobody watches a bar here
        return json.loads(result.stdout) if "--json" in options else result.stdout

    return call


def test_perplexity(run):
    exact = run("perplexity", "--executor", "reference", "--json")
    native = run("perplexity", "--json", "--threads", "1")
    assert exact["tokens"] == native["tokens"] > 50
    assert native["perplexity"] == pytest.approx(exact["perplexity"], rel=0.05)
    assert f"{exact['perplexity']:.4f}" in run("perplexity", "--executor", "reference")


def test_kl(run):
    exact = run("kl", "--executor", "reference", "--json")
    rounded = run("kl", "--executor", "int8", "--kv", "int8", "--json")
    native = run("kl", "--json", "--tokens", "40")
    assert 0 <= exact["mean_kl"] < rounded["mean_kl"]
    assert native["mean_kl"] < 0.05
    assert native["mean_kl"] < run("kl", "--json", "--tokens", "40", "--weight-bits", "4")["mean_kl"]
    assert native["tokens"] == 39 - 1
    text = run("kl", "--executor", "int8", "--kv", "int8")
    assert f"mean {rounded['mean_kl']:.2g}," in text
    assert f"{100 * rounded['same_top1']:.2f} %" in text


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_text_that_cannot_be_read_is_named(run, tmp_path, content):
    if content is not None:
        (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"bad\.txt: cannot be read: (No such file|'utf-8' codec)"):
        run("perplexity", text="bad.txt")


def test_a_window_is_no_longer_than_the_model_was_made_for(run):
    with pytest.raises(InvalidInput, match="--context: expected at most 512, which the model was made for, got 513"):
        run("perplexity", "--context", "513")
