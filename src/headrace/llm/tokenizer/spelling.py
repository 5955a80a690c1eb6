"""From tokens as files write them to what they stand for: texts and kinds flow in, out come pieces, kinds and names.

Byte-level files spell every byte by a printable character; SentencePiece writes U+2581 for a space and "<0x0A>" for a
byte. Tokens that are no plain text stand for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headrace.llm.tokenizer.bytelevel import spell_all
from headrace.llm.tokenizer.marks import settle_kinds
from headrace.llm.tokenizer.pieces import Pieces, replace, utf8_all
from headrace.llm.tokenizer.vocabulary import BYTE, NORMAL, Kinds

__all__ = ["SPACE", "Spelled", "spell_tokens"]

SPACE = "\u2581"
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Spelled(NamedTuple):
    """`names`: the tokens that are no plain text, by their text; of equal ones the first."""

    pieces: Pieces
    kinds: Kinds
    names: Mapping[str, int]


def spell_tokens(tokens: Sequence[str], kinds: Kinds, *, byte_level: bool) -> Spelled:
    """What each token stands for. `kinds` is int8[n] as the file has it; some are put right."""
    pieces, strangers = spell_all(tokens) if byte_level else (utf8_all(tokens, SPACE), set())
    written = {}
    for token in {*np.flatnonzero(kinds != NORMAL).tolist(), *strangers}:
        value = _BYTE_TOKEN.fullmatch(tokens[token]) if kinds[token] == BYTE else None
        written[token] = bytes((int(value[1], 16),)) if value else tokens[token].encode()
    pieces = replace(pieces, written)
    kinds = settle_kinds(pieces, kinds)
    names = {tokens[token]: token for token in np.flatnonzero(kinds != NORMAL)[::-1].tolist() if tokens[token]}
    return Spelled(pieces, kinds, names)
