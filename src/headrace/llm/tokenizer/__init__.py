"""Text to tokens and back, as the checkpoint's metadata defines it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.llm.tokenizer.detokenizer import Detokenizer
from headrace.llm.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer a checkpoint was trained with, from its metadata in GGUF's keys.

    The key "headrace.tokenizer.file" names a `tokenizer.json`; then the texts of tokens come from there. Raises
    `LoadFailed` naming the key that is missing, malformed, or says what is not known, and what is known.
    """
    if file := metadata.get("headrace.tokenizer.file"):
        from headrace.llm.tokenizer.huggingface import tokenizer_from_json

        return tokenizer_from_json(file, metadata)
    from headrace.llm.tokenizer.metadata import tokenizer_from_metadata

    return tokenizer_from_metadata(metadata)
