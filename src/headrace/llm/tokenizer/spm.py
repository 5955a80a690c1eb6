"""SentencePiece's merging by score: text flows in, token ids come out, bytes for what is no token.

Text and tokens have real spaces here where SentencePiece writes U+2581. A text is first cut before a space wherever no
token holds such a place inside, which changes nothing and lets words be remembered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headrace.llm.tokenizer.merge import merge
from headrace.llm.tokenizer.spelling import SPACE
from headrace.llm.tokenizer.vocabulary import Vocabulary
from headrace.llm.tokenizer.words import WordCache

__all__ = ["ScoredMerging"]


class ScoredMerging:
    """Merges the characters of a text.

    Args:
        vocabulary: Its plain tokens have spaces for U+2581.
        scores: float32[n]; the pair that makes the token of the highest score is merged first.
        byte_tokens: The token of each byte value that has one.
        add_space: Whether a text that begins, or follows a special token, gets a space in front.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: npt.NDArray[np.float32],
        byte_tokens: Mapping[int, int],
        add_space: bool,
    ) -> None:
        self._vocabulary = vocabulary
        _, order = np.unique(-scores, return_inverse=True)
        self._ranks = order.astype(np.int32).data
        self._bytes = [byte_tokens.get(value, -1) for value in range(256)]
        self._add_space = add_space
        self._words = _cutter(vocabulary)
        self._cache = WordCache(self._cut)

    def encode(self, text: str, follows_special: bool, out: list[int]) -> None:
        """Append the ids of `text`."""
        text = text.replace(SPACE, " ")
        if self._add_space and follows_special:
            text = " " + text
        self._cache.encode(self._words.findall(text.encode()), out)

    def _cut(self, word: bytes) -> tuple[int, ...]:
        bounds = [at for at, value in enumerate(word) if value & 0xC0 != 0x80]
        bounds.append(len(word))
        find = self._vocabulary.find
        tokens = [find(word[begin:end]) for begin, end in pairwise(bounds)]
        ids: list[int] = []
        for begin, end, token in merge(word, bounds, tokens, self._ranking):
            if token >= 0:
                ids.append(token)
            else:
                ids += [byte for value in word[begin:end] if (byte := self._bytes[value]) >= 0]
        return tuple(ids)

    def _ranking(self, pair: bytes, split: int) -> tuple[int, int]:
        token = self._vocabulary.find(pair)
        return (self._ranks[token], token) if token >= 0 else (-1, -1)


def _cutter(vocabulary: Vocabulary) -> re.Pattern[bytes]:
    """Cuts UTF-8 before each space unless the byte in front is a space or has a space after it within some token."""
    inside = vocabulary.bytes_before(b" ") | {b" "[0]}
    kept = b"".join(re.escape(bytes((value,))) for value in sorted(inside))
    return re.compile(b".(?:[^ ]|(?<=[%b]) )*" % kept, re.DOTALL)
