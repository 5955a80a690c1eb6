"""GPT-2's spelling of bytes by printable characters: spelled texts flow in, the bytes come out.

Source: Radford et al. 2019, section 2.2, and the code released with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from headrace.llm.tokenizer.pieces import Pieces, join

__all__ = ["bytes_of", "spell", "spell_all"]

_TOP = 0x143
"""The last character that spells a byte."""


@cache
def _values() -> npt.NDArray[np.int16]:
    """int16[_TOP + 2]: the byte each character spells, -1 for none and for all beyond."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, _TOP + 1))
    values = np.full(_TOP + 2, -1, np.int16)
    for value in range(256):
        values[value if value in printable else next(others)] = value
    return values


def spell_all(texts: Sequence[str]) -> tuple[Pieces, set[int]]:
    """The bytes of each text, and the indices of those texts that spell none (their bytes are of no use)."""
    characters, ends = join(texts)
    strange = np.flatnonzero(_values()[np.minimum(characters, _TOP + 1)] < 0)
    return spell(characters, ends), set(np.unique(np.searchsorted(ends, strange, "right") - 1).tolist())


def spell(characters: npt.NDArray[np.uint32], ends: npt.NDArray[np.int32]) -> Pieces:
    """The byte each character spells, 0xFF for what spells none; `ends` as in `Pieces`."""
    return Pieces(_values()[np.minimum(characters, _TOP + 1)].astype(np.uint8).tobytes(), ends)


def bytes_of(text: str) -> bytes | None:
    """The bytes that `text` spells, None if it spells none."""
    pieces, strangers = spell_all([text])
    return None if strangers else pieces.blob
