"""Small vocabularies made here: a byte-level one trained by `tokenizers`, and one with scores."""

from __future__ import annotations

import json
import string
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog barks at the fox in the morning.",
    "Don't worry: they'll be here; it's fine! We've 12 apples, 345 pears and 6,789 plums.",
    "привет мир, как дела? 你好 世界 日本語のテスト。 안녕하세요 שלום مرحبا बहुत अच्छा",
    "def f(x):\n    return x ** 2\n\n\nprint(f(10))\t# done\r\n",
    "naïve café résumé Straße 👍🏽 👨‍👩‍👧 ½ ² Ⅷ",
] * 3


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """A tokenizer of Hugging Face's, trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def byte_level_metadata(byte_level: Tokenizer) -> dict[str, Any]:
    """The same under GGUF's keys."""
    model = json.loads(byte_level.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3] * 3 + [1] * (len(tokens) - 3), np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


@pytest.fixture
def scored_metadata() -> dict[str, Any]:
    """A Llama-2-like vocabulary: begin and end, bytes, letters, and some words with scores."""
    words = ["he", "ll", "lo", "hell", "hello", "▁", "▁▁", "▁h", "▁hello", "or", "wor", "ld", "▁w", "▁wor", "▁world"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *words, *string.ascii_letters]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))] + [-100.0] * 52
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
    }
