"""Tokens that stand in a text as themselves: a text flows in, out come its stretches and the ids between them.

The longest of them is looked for first, in the whole text, then the next; that is llama.cpp's order, which differs from
"leftmost first" where two overlap.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
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
        lengths = defaultdict(set)
        for text in self._ids:
            lengths[text[:2]].add(len(text))
        self._lengths = {start: sorted(found) for start, found in lengths.items()}
        starts = sorted(map(re.escape, self._lengths), key=len, reverse=True)
        self._starts = re.compile(f"(?=({'|'.join(starts)}))") if starts else None

    def split(self, text: str) -> Parts:
        """The text as stretches (never empty) and ids, in order."""
        parts: Parts = [text] if text else []
        for special in self.present(text):
            token = self._ids[special]
            found: Parts = []
            for part in parts:
                if isinstance(part, int):
                    found.append(part)
                else:
                    self._cut(part, special, token, found)
            parts = found
        return parts

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

    def present(self, text: str) -> list[str]:
        """Which tokens occur anywhere, longest in UTF-8 first."""
        if self._starts is None:
            return []
        present = set()
        for match in self._starts.finditer(text):
            at = match.start()
            for start in {match[1], match[1][:1]}:
                for length in self._lengths.get(start, ()):
                    if (piece := text[at : at + length]) in self._ids:
                        present.add(piece)
        return sorted(present, key=lambda piece: (-len(piece.encode()), self._ids[piece]))
