"""Tokens that stand in a text as themselves: a text flows in, out come its stretches and the ids between them.

The longest of them is looked for first, in the whole text, then the next; that is llama.cpp's order, which differs from
"leftmost first" only where one token begins within another. Nearly always one pass of an expression does the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import combinations, starmap
from typing import TypeAlias

__all__ = ["Parts", "Specials"]

Parts: TypeAlias = list[str | int]
_ASCII_SPACE = " \t\n\v\f\r"


class Specials:
    """Finds some tokens in texts.

    Args:
        ids: The tokens by their text; none is empty.
        strip_right: Those after which white space is dropped.
    """

    def __init__(self, ids: Mapping[str, int], strip_right: Collection[int] = ()) -> None:
        self._ids = dict(ids)
        self._strip_right = frozenset(strip_right)
        groups: dict[str, set[str]] = defaultdict(set)
        for text in self._ids:
            groups[text[:2]].add(text)
        self._lengths = {start: sorted(set(map(len, texts))) for start, texts in groups.items()}
        # Where each text but the shortest continues another, as runs of blanks do, a miss ends the search.
        self._is_closed = {
            start: all(text[:-1] in texts or len(text) == self._lengths[start][0] for text in texts)
            for start, texts in groups.items()
        }
        starts = sorted(map(re.escape, self._lengths), key=len, reverse=True)
        self._starts = re.compile(f"(?=({'|'.join(starts)}))") if starts else None

    def split(self, text: str) -> Parts:
        """The text as stretches (never empty) and ids, in order."""
        parts: Parts = [text] if text else []
        present = self.present(text)
        if not present:
            return parts
        if not self._strip_right and not any(starmap(_may_begin_within, combinations(present, 2))):
            pieces = re.split(f"({'|'.join(map(re.escape, present))})", text)
            return [self._ids[piece] if place % 2 else piece for place, piece in enumerate(pieces) if piece]
        for special in present:
            token, found = self._ids[special], list[str | int]()
            for part in parts:
                if isinstance(part, int):
                    found.append(part)
                else:
                    self._cut(part, special, token, found)
            parts = found
        return parts

    def present(self, text: str) -> list[str]:
        """Which tokens occur anywhere, longest in UTF-8 first."""
        if self._starts is None:
            return []
        present = set()
        for match in self._starts.finditer(text):
            at = match.start()
            for start in {match[1], match[1][:1]}:
                is_closed = self._is_closed.get(start, False)
                for length in self._lengths.get(start, ()):
                    if (piece := text[at : at + length]) in self._ids:
                        present.add(piece)
                    elif is_closed:
                        break
        return sorted(present, key=lambda piece: (-len(piece.encode()), self._ids[piece]))

    def _cut(self, text: str, special: str, token: int, found: Parts) -> None:
        while True:
            before, is_there, text = text.partition(special)
            if before:
                found.append(before)
            if not is_there:
                return
            found.append(token)
            if token in self._strip_right:
                text = text.lstrip(_ASCII_SPACE)


def _may_begin_within(first: str, later: str) -> bool:
    """Whether `first`, which is looked for before `later`, can begin within it: then the order matters."""
    if set(first) == set(later) == {first[0]}:
        return False  # of two runs of one character the longer begins where the shorter does
    return any(first.startswith(later[at:]) or later.startswith(first, at) for at in range(1, len(later)))
