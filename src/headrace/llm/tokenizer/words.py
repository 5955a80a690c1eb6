"""What recent words were cut into: a bounded memory, because a text is mostly words that were there before."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["WordCache"]

_GENERATION = 8192
_LONGEST_BYTES = 64


class WordCache:
    """Remembers at least the last 8,192 distinct words, at most twice as many; long ones are cut anew each time.

    Threads may share it: they lose at most an entry to each other.
    """

    def __init__(self, cut: Callable[[bytes], tuple[int, ...]]) -> None:
        self._cut = cut
        self._young: dict[bytes, tuple[int, ...]] = {}
        self._old: dict[bytes, tuple[int, ...]] = {}

    def encode(self, words: list[bytes], out: list[int]) -> None:
        """Append the ids of each word."""
        young = self._young
        for word in words:
            ids = young.get(word)
            if ids is None:
                ids = self._miss(word)
                young = self._young
            out += ids

    def _miss(self, word: bytes) -> tuple[int, ...]:
        ids = self._old.get(word)
        if ids is None:
            ids = self._cut(word)
            if len(word) > _LONGEST_BYTES:
                return ids
        if len(self._young) >= _GENERATION:
            self._old, self._young = self._young, {}
        self._young[word] = ids
        return ids
