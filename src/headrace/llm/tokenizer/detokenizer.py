"""Streaming text: token ids flow in one by one, complete characters come out."""

from __future__ import annotations

import codecs

from headrace.llm.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Turns the tokens of one sequence into text, never half a character.

    Bytes that cannot become one are U+FFFD as soon as that is certain. Marks such as "<|im_end|>" are no text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._piece = tokenizer.token_bytes
        self._is_special = tokenizer.is_special
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int) -> str:
        """The text that became complete with this token, "" if none did. Raises `InvalidInput` for an unknown id."""
        if self._is_special(token):
            return ""
        return self._decode(self._piece(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for the beginning of a character, else "". Begins anew."""
        return self._decode(b"", True)
