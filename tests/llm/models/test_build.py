"""A model is traced from a checkpoint that holds exactly what it needs; anything else is named."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import InvalidInput, LoadFailed
from headrace.llm.loader import load_model
from headrace.llm.trace import Attention, Embed, Linear, Logits, Weight


def test_a_layer_is_written_in_order(llama_file):
    checkpoint, _, trace = load_model(llama_file())
    kinds = [type(op).__name__ for op in trace.ops]
    layer = ["Norm", "Linear", "Attention", "Linear", "Add", "Norm", "Gated", "Linear", "Add"]
    assert kinds == ["Embed", *layer, *layer, "Norm", "Logits"]
    qkv = next(op for op in trace.ops if isinstance(op, Linear))
    assert [(w.name, w.rows, w.cols) for w in qkv.weights] == [
        ("blk.0.attn_q.weight", 32, 32),
        ("blk.0.attn_k.weight", 16, 32),
        ("blk.0.attn_v.weight", 16, 32),
    ]
    assert qkv.biases == ("", "", "")
    checkpoint.close()


def test_the_head_is_the_embedding_unless_there_is_one(llama_file):
    tied = load_model(llama_file())[2].ops
    assert isinstance(tied[0], Embed)
    assert isinstance(tied[-1], Logits)
    assert tied[-1].head == tied[0].table == Weight("token_embd.weight", 40, 32)
    own = load_model(llama_file(tensors={"output.weight": np.zeros((40, 32), np.float32)}))[2].ops
    assert isinstance(own[-1], Logits)
    assert own[-1].head == Weight("output.weight", 40, 32)


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_down.weight"])
def test_a_missing_tensor_is_named(llama_file, name):
    with pytest.raises(LoadFailed, match=rf"no tensor {name}; a llama model needs it, of shape \["):
        load_model(llama_file(tensors={name: None}))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blk.0.attn_k.weight", (32, 32), r"\[16, 32\] by the metadata, got \[32, 32\]"),
        ("blk.1.ffn_up.weight", (32, 48), r"\[48, 32\] by the metadata, got \[32, 48\]"),
        ("output_norm.weight", (31,), r"\[32\] by the metadata, got \[31\]"),
        ("blk.0.attn_q.bias", (16,), r"\[32\] by the metadata, got \[16\]"),
        ("output.weight", (41, 32), r"\[40, 32\] by the metadata, got \[41, 32\]"),
    ],
)
def test_a_wrong_shape_is_named(llama_file, name, shape, expected):
    with pytest.raises(LoadFailed, match=rf"tensor {name}: expected shape {expected}"):
        load_model(llama_file(tensors={name: np.zeros(shape, np.float32)}))


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_inp.weight", "blk.2.attn_q.weight", "blk.0.attn_q_norm.weight", "x"])
def test_an_unknown_tensor_is_named(llama_file, name):
    with pytest.raises(LoadFailed, match=rf"llama model of 2 layers does not know: {name}; leaving them out"):
        load_model(llama_file(tensors={name: np.zeros(8, np.float32)}))


def test_of_many_unknown_tensors_the_first_are_named(llama_file):
    tensors = {f"extra.{i}": np.zeros(8, np.float32) for i in range(8)}
    with pytest.raises(LoadFailed, match=r"extra\.0, .*extra\.4 and 3 more"):
        load_model(llama_file(tensors=tensors))


def test_frequencies_of_old_converters_are_not_missed(llama_file):
    load_model(llama_file(tensors={"blk.0.attn_rot_embd.weight": np.zeros(4, np.float32)}))


def test_divisors_must_divide(llama_file):
    with pytest.raises(LoadFailed, match=r"tensor rope_freqs.weight: expected finite numbers above 0"):
        load_model(llama_file(tensors={"rope_freqs.weight": np.array([1, 0, 1, 1], np.float32)}))


def test_longrope_needs_both_sets_of_divisors(llama_file):
    path = llama_file({"llama.rope.scaling.type": "longrope"})
    with pytest.raises(LoadFailed, match=rf"^{path}: no tensor rope_factors_short.weight"):
        load_model(path)


def test_the_window_and_the_context_reach_the_trace(llama_file):
    path = llama_file({"llama.attention.sliding_window": 7})
    assert {op.window for op in load_model(path, 20)[2].ops if isinstance(op, Attention)} == {7}
    assert load_model(path, 20)[1].context_length == 20
    with pytest.raises(InvalidInput, match="context length"):
        load_model(path, 65)
