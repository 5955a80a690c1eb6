"""Byte-pair encoding by a list of merges: words of bytes flow in, token ids come out.

The merges are kept by the token they yield: which ranks it has and where each splits it. Two flat arrays hold that for
280,000 merges in 2 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.tokenizer.bytelevel import spell
from headrace.llm.tokenizer.merge import merge
from headrace.llm.tokenizer.pieces import join
from headrace.llm.tokenizer.pretokenize import PreTokenizer
from headrace.llm.tokenizer.vocabulary import Vocabulary
from headrace.llm.tokenizer.words import WordCache

Ints = npt.NDArray[np.int32]

__all__ = ["ByteBpe", "Merges", "parse_merges"]


class Merges:
    """Ranks of pairs.

    Args:
        tokens: int32[m], the token that each merge yields, in the order of their ranks.
        splits: int32[m], how many bytes of it the left half has.
        n_tokens: Size of the vocabulary.
    """

    def __init__(self, tokens: Ints, splits: Ints, n_tokens: int) -> None:
        order = np.argsort(tokens, kind="stable").astype(np.int32)
        first = np.zeros(n_tokens + 1, np.int32)
        np.cumsum(np.bincount(tokens, minlength=n_tokens), out=first[1:])
        self._ranks, self._splits, self._first = order.data, splits[order].data, first.data

    def rank(self, token: int, split: int) -> int:
        """The rank of merging the two parts of `token` left and right of byte `split`; -1 if they do not merge."""
        splits = self._splits
        for at in range(self._first[token], self._first[token + 1]):
            if splits[at] == split:
                return self._ranks[at]
        return -1


def parse_merges(merges: Sequence[str], vocabulary: Vocabulary) -> Merges:
    """Read merges written "left right" in GPT-2's spelling, the first of rank 0.

    Raises `LoadFailed` for one that is no merge, or yields what is no token.
    """
    characters, ends = join(merges)
    spaces = np.flatnonzero(characters == ord(" ")).astype(np.int32)
    is_pair = np.diff(np.searchsorted(spaces, ends)) == 1
    if is_pair.all():
        pieces = spell(np.delete(characters, spaces), np.subtract(ends, np.arange(len(ends)), dtype=np.int32))
        find, blob = vocabulary.find, pieces.blob
        made = (find(blob[begin:end]) for begin, end in pairwise(pieces.ends.data))
        tokens = np.fromiter(made, np.int32, len(merges))
        splits = spaces - ends[:-1]
        is_pair = (splits > 0) & (splits < np.diff(pieces.ends)) & (tokens >= 0)
        if is_pair.all():
            return Merges(tokens, splits, len(vocabulary))
    rank = int(np.argmin(is_pair))
    raise LoadFailed(f"tokenizer.ggml.merges[{rank}] is {merges[rank]!r}; expected the two parts of a token")


class ByteBpe:
    """Merges the bytes of each word. A byte that is no token is left out, as it was when the model was trained."""

    def __init__(self, vocabulary: Vocabulary, merges: Merges, pre: PreTokenizer) -> None:
        self._vocabulary = vocabulary
        self._merges = merges
        self._pre = pre
        self._bytes = [vocabulary.find(bytes((value,))) for value in range(256)]
        self._cache = WordCache(self._cut)

    def encode(self, text: str, follows_special: bool, out: list[int]) -> None:
        """Append the ids of `text`; what it follows makes no difference here."""
        self._cache.encode(self._pre.words(text), out)

    def _cut(self, word: bytes) -> tuple[int, ...]:
        if self._pre.ignore_merges and (token := self._vocabulary.find(word)) >= 0:
            return (token,)
        found = merge(word, list(range(len(word) + 1)), [self._bytes[value] for value in word], self._ranking)
        return tuple(token for _, _, token in found if token >= 0)

    def _ranking(self, pair: bytes, split: int) -> tuple[int, int]:
        token = self._vocabulary.find(pair)
        return (self._merges.rank(token, split), token) if token >= 0 else (-1, -1)
