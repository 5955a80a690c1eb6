"""Merging neighbours into tokens: symbols of a text and a ranking of pairs flow in, the ids of what remains come out.

Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) and the score-driven merging of SentencePiece differ only in
how a pair is ranked: always the best-ranked pair is merged next, the leftmost of equals.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

__all__ = ["Ranking", "merge"]

Ranking: TypeAlias = Callable[[bytes, int], tuple[int, int]]
"""(bytes of a pair, length of its left half) -> (rank, id of the token it merges into); a negative rank: no merge."""

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def merge(text: bytes, bounds: list[int], tokens: list[int], ranking: Ranking) -> list[tuple[int, int, int]]:
    """Merge the symbols of `text` as long as the ranking knows a pair.

    Args:
        bounds: int[n + 1], where symbol i begins and symbol i - 1 ends.
        tokens: int[n], the id of each symbol, -1 where it is no token.

    Returns (begin, end, id) of what remains, in order; id -1 as in `tokens`.
    """
    n = len(tokens)
    tokens = tokens.copy()
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    ranks, merged = [-1] * n, [-1] * n  # of the pair that symbol i begins
    queue = []
    for i in range(n - 1):
        rank, merged[i] = ranking(text[bounds[i] : bounds[i + 2]], bounds[i + 1] - bounds[i])
        if rank >= 0:
            ranks[i] = rank
            queue.append(rank << _INDEX_BITS | i)
    heapify(queue)

    while queue:
        entry = heappop(queue)
        i = entry & _INDEX_MASK
        if ranks[i] != entry >> _INDEX_BITS:
            continue  # one of the two was merged otherwise meanwhile
        tokens[i] = merged[i]
        gone = after[i]
        after[i] = end = after[gone]
        ranks[gone] = -1
        if end < n:
            before[end] = i
        for left in (before[i], i):
            if left < 0:
                continue
            middle = after[left]
            if middle >= n:
                ranks[left] = -1
                continue
            begin = bounds[left]
            rank, merged[left] = ranking(text[begin : bounds[after[middle]]], bounds[middle] - begin)
            ranks[left] = rank
            if rank >= 0:
                heappush(queue, rank << _INDEX_BITS | left)

    found, i = [], 0
    while i < n:
        found.append((bounds[i], bounds[after[i]], tokens[i]))
        i = after[i]
    return found
