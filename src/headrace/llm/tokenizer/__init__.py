"""Text to tokens and back, as the checkpoint's metadata defines it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.llm.tokenizer.detokenizer import Detokenizer
from headrace.llm.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer a checkpoint was trained with, from its metadata in GGUF's keys.

    Raises `LoadFailed` naming the key that is missing, malformed, or says what is not known, and what is known.
    """
    from headrace.llm.tokenizer.metadata import tokenizer_from_metadata

    return tokenizer_from_metadata(metadata)
