"""`headrace inspect` shows what a model file holds and what it takes to run it, and nothing to fool a terminal with."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.testing.gguf import write_gguf

WIDTH, FFN, VOCAB, LAYERS, KV = 64, 96, 128, 2, 32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny Llama of Q8_0."""
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (VOCAB, WIDTH)}
    for layer in range(LAYERS):
        sizes = {"attn_q": (WIDTH, WIDTH), "attn_k": (KV, WIDTH), "attn_v": (KV, WIDTH), "attn_output": (WIDTH, WIDTH)}
        sizes |= {"ffn_gate": (FFN, WIDTH), "ffn_up": (FFN, WIDTH), "ffn_down": (WIDTH, FFN)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in sizes.items()}
    tensors = {f"{name}.weight": ("Q8_0", rng.standard_normal(shape)) for name, shape in shapes.items()}
    norms = ["output_norm", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm"))]
    tensors |= {f"{name}.weight": ("F32", np.ones(WIDTH, np.float32)) for name in norms}
    keys = {"block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": FFN, "context_length": 512}
    keys |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    metadata = {"general.architecture": "llama", "general.name": "tiny"} | {f"llama.{k}": v for k, v in keys.items()}
    metadata["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(VOCAB)]
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", metadata, tensors)


def _run(*arguments, status=0):
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output + str(result.exception)
    return result.output


def test_the_report_holds_everything(model):
    report = json.loads(_run(model, "--json"))
    assert report["files"] == [{"path": str(model), "size_bytes": model.stat().st_size}]
    assert (report["architecture"], report["name"], report["problem"]) == ("llama", "tiny", "")
    matrices = VOCAB * WIDTH + LAYERS * (2 * WIDTH * WIDTH + 2 * KV * WIDTH + 3 * FFN * WIDTH)
    assert report["parameters"] == matrices + (2 * LAYERS + 1) * WIDTH
    assert report["types"] == {"Q8_0": 15, "F32": 5}
    assert report["config"]["head_dim"] == 16
    assert {"name": "blk.1.attn_k.weight", "type": "Q8_0", "shape": [KV, WIDTH], "size_bytes": 32 * 68} in report[
        "tensors"
    ]
    assert report["metadata"]["tokenizer.ggml.tokens"] == {"length": 128, "first": [f"t{i}" for i in range(8)]}
    memory = report["memory"]
    a_token = LAYERS * 2 * KV
    assert memory["kv_bytes_per_token"] == {"f16": 2 * a_token, "int8": a_token}
    assert memory["kv_bytes"] == {"f16": 512 * 2 * a_token, "int8": 512 * a_token}
    assert matrices <= memory["weights_bytes"] <= 1.25 * matrices


def test_memory_is_planned_for_the_context_asked_for(model):
    memory = json.loads(_run(model, "--context", 100, "--json"))["memory"]
    assert memory["context"] == 100
    assert memory["kv_bytes"]["f16"] == 112 * memory["kv_bytes_per_token"]["f16"], "whole pages of 16 tokens"
    result = CliRunner().invoke(app, ["inspect", str(model), "--context", "1000"])
    assert result.exit_code == 1
    assert "context length: expected 1 to 512, got 1000" in str(result.exception)


def test_people_read_it_as_lines(model):
    output = _run(model)
    assert "tensors       20: 15 Q8_0, 5 F32" in output
    assert "heads         4 of 16, 2 for keys and values" in output
    assert "blk.0" not in output
    assert "blk.1.ffn_down.weight" in _run(model, "--tensors")
    assert "tokenizer.ggml.tokens" in _run(model, "--metadata")
    assert "128 values: 't0', 't1'" in _run(model, "--metadata")


def test_a_model_that_cannot_be_run_is_shown_with_the_reason(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "mamba"}, {})
    report = json.loads(_run(path, "--json"))
    assert "general.architecture: expected one of" in report["problem"]
    assert report["memory"] is None
    assert "cannot be run: " in _run(path)


def test_texts_of_a_file_cannot_steer_the_terminal(tmp_path):
    evil = "\x1b[2Jgone\x07"
    tensors = {evil: ("F32", np.ones(1, np.float32))}
    path = write_gguf(tmp_path / "m.gguf", {"general.name": evil, evil: evil, "general.architecture": evil}, tensors)
    output = _run(path, "--tensors", "--metadata")
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "gone" in output


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"hello")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "x.gguf")])
    assert result.exit_code == 1
    assert "expected a GGUF file" in str(result.exception)
