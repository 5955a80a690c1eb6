"""The metadata is read as its keys mean it, and every value that cannot be is named with what was expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.errors import InvalidInput, LoadFailed
from headrace.llm.config import ARCHITECTURES, ModelConfig
from headrace.llm.formats import open_checkpoint
from headrace.llm.models import DEFINITIONS
from headrace.testing.gguf import write_gguf


def _config(path):
    checkpoint = open_checkpoint(path)
    try:
        return ModelConfig.from_checkpoint(checkpoint)
    finally:
        checkpoint.close()


@pytest.fixture
def minimal(tmp_path):
    """The config of an architecture from the fewest keys, and more where given."""

    def read(arch, **more):
        keys = {
            "block_count": 12,
            "context_length": 8192,
            "embedding_length": 96,
            "feed_forward_length": 64,
            "attention.head_count": 4,
            "attention.layer_norm_rms_epsilon": 1e-6,
        } | {name.replace("__", "."): value for name, value in more.items()}
        metadata = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}
        return _config(
            write_gguf(tmp_path / "m.gguf", metadata, {"token_embd.weight": ("F32", np.zeros((7, 96), np.float32))})
        )

    return read


def test_every_architecture_has_a_definition():
    assert set(ARCHITECTURES) == set(DEFINITIONS)


def test_sizes(llama_file):
    config = _config(llama_file())
    assert (config.architecture, config.n_layers, config.width, config.ffn_width) == ("llama", 2, 32, 48)
    assert (config.n_heads, config.n_kv_heads, config.head_dim, config.vocab_size) == (4, 2, 8, 40)
    assert config.norm_eps == pytest.approx(1e-5)
    assert config.attention_scale == pytest.approx(8**-0.5)
    assert config.windows == (0, 0)


def test_one_number_of_kv_heads_a_layer_may_be_written_for_each(llama_file):
    assert _config(llama_file({"llama.attention.head_count_kv": [2, 2]})).n_kv_heads == 2
    with pytest.raises(LoadFailed, match="head_count_kv: expected a whole number"):
        _config(llama_file({"llama.attention.head_count_kv": [2, 1]}))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("general.architecture", "mamba", "expected one of gemma2, gemma3, llama, phi3, qwen2, qwen3; got 'mamba'"),
        ("general.architecture", None, "got ''"),
        ("llama.block_count", None, "expected a whole number from 1 to 1024, got None"),
        ("llama.block_count", 0, "expected a whole number from 1 to 1024, got 0"),
        ("llama.block_count", "two", "got 'two'"),
        ("llama.block_count", True, "got True"),
        ("llama.embedding_length", 2**31, "expected a whole number"),
        ("llama.embedding_length", 32.0, "expected a whole number"),
        ("llama.attention.head_count_kv", 3, "expected a divisor of the 4 heads, got 3"),
        ("llama.attention.head_count_kv", 8, "expected a whole number from 1 to 4, got 8"),
        ("llama.attention.value_length", 16, "expected 8, as attention.key_length, got 16"),
        ("llama.attention.layer_norm_rms_epsilon", None, "expected a number from 0 to 1, got None"),
        ("llama.attention.layer_norm_rms_epsilon", math.nan, "expected a number from 0 to 1, got nan"),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5, "expected a number"),
        ("llama.context_length", 0, "expected a whole number"),
        ("llama.expert_count", 8, "mixtures of experts are not supported"),
        ("llama.vocab_size", 41, "expected at most 40, the rows of token_embd.weight, got 41"),
        ("llama.rope.freq_base", math.inf, "expected a number"),
        ("llama.rope.dimension_count", 5, "expected an even number, got 5"),
        ("llama.rope.dimension_count", 16, "expected a whole number from 2 to 8, got 16"),
        ("llama.rope.scaling.type", "ntk", "expected one of none, linear, llama3, longrope, yarn, got 'ntk'"),
        ("llama.rope.scaling.factor", 0.0, "expected a number from 0.001 to 1e"),
        ("llama.attention.sliding_window_pattern", [True], "expected a number or 2 flags, got '1 flags'"),
        ("headrace.rope.interleaved", 1, "expected true or false, got 1"),
    ],
)
def test_a_wrong_value_is_named(llama_file, key, value, expected):
    more = {"llama.attention.sliding_window": 4} if "pattern" in key else {}
    path = llama_file({key: value, **more})
    with pytest.raises(LoadFailed) as caught:
        _config(path)
    assert str(caught.value).startswith(f"{path}: {key}: ")
    assert expected in str(caught.value)


def test_the_vocabulary_is_the_embedding(llama_file):
    with pytest.raises(LoadFailed, match=r"token_embd.weight: expected a matrix .* but it is absent"):
        _config(llama_file(tensors={"token_embd.weight": None}))
    with pytest.raises(LoadFailed, match=r"its shape is \[40\]"):
        _config(llama_file(tensors={"token_embd.weight": np.zeros(40, np.float32)}))
    with pytest.raises(LoadFailed, match=r"41 tokens, but token_embd\.weight has 40 rows"):
        _config(llama_file({"tokenizer.ggml.tokens": [str(i) for i in range(41)]}))


def test_defaults_of_the_gemmas(minimal):
    two = minimal("gemma2", attention__key_length=32)
    assert two.windows == (4096, 0) * 6
    assert (two.attention_softcap, two.logit_softcap) == (50, 30)
    assert two.attention_scale == pytest.approx(32**-0.5)
    three = minimal("gemma3", attention__key_length=32, attention__sliding_window=512, rope__freq_base=1e6)
    assert three.windows == (512, 512, 512, 512, 512, 0) * 2
    assert (three.rope.theta, three.rope.local_theta) == (1e6, 1e4)
    assert (three.attention_softcap, three.logit_softcap) == (0, 0)


@pytest.mark.parametrize(("arch", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_gemmas_scale_queries_by_their_share_of_the_width(minimal, arch, n_layers):
    config = minimal(arch, block_count=n_layers, attention__key_length=32)
    assert config.attention_scale == pytest.approx((96 // 4) ** -0.5)
    assert minimal(arch, attention__key_length=32).attention_scale == pytest.approx(32**-0.5)
    assert minimal(arch, attention__scale=0.3).attention_scale == pytest.approx(0.3)


def test_windows(minimal):
    assert minimal("llama", attention__sliding_window=100).windows == (100,) * 12
    assert minimal("phi3", attention__sliding_window=100).windows == (100,) * 12
    assert minimal("qwen2", attention__sliding_window=100).windows == (0,) * 12
    flags = [False, True] * 6
    config = minimal("qwen2", attention__sliding_window=100, attention__sliding_window_pattern=flags)
    assert config.windows == (0, 100) * 6
    wide = minimal("gemma3", attention__sliding_window=8192)
    assert wide.windows == (0,) * 12, "a window as wide as the context hides nothing"
    assert wide.local_layers == (True, True, True, True, True, False) * 2, "but its layers turn by their own theta"


def test_the_context_can_be_made_shorter_only(minimal):
    config = minimal("llama")
    assert config.with_context(100).context_length == 100
    for length in (0, 8193):
        with pytest.raises(InvalidInput, match="expected 1 to 8192"):
            config.with_context(length)
