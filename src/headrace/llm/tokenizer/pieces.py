"""Many short texts as one: lists of texts flow in, out come a blob and where each ends. No object is made for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.llm.formats.texts import Texts

__all__ = ["Pieces", "join", "replace", "utf8_all"]

Ints = npt.NDArray[np.int32]


class Pieces(NamedTuple):
    """`blob[ends[i] : ends[i + 1]]` is piece i; `ends` is int32[n + 1] and begins with 0."""

    blob: bytes
    ends: Ints


def join(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], Ints]:
    """The code points of all texts in a row, and int32[n + 1], where each text begins."""
    if isinstance(texts, Texts):
        characters = np.frombuffer(texts.blob.decode().encode("utf-32-le"), np.uint32)
        begins = np.frombuffer(texts.blob, np.uint8) & 0xC0 != 0x80
        before = np.zeros(len(begins) + 1, np.int32)
        np.cumsum(begins, out=before[1:])
        return characters, before[texts.ends]
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, texts), np.int32, len(texts)), out=ends[1:])
    return np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32), ends


def utf8_all(texts: Sequence[str], space: str) -> Pieces:
    """Each text in UTF-8, with a space for the character `space`."""
    characters, ends = join(texts)
    widths = np.uint8(1) + (characters >= 0x80) + (characters >= 0x800) + (characters >= 0x10000)
    widths[characters == ord(space)] = 1
    bytes_before = np.zeros(len(widths) + 1, np.int32)
    np.cumsum(widths, out=bytes_before[1:])
    whole = characters.tobytes().decode("utf-32-le").replace(space, " ").encode()
    return Pieces(whole, bytes_before[ends])


def replace(pieces: Pieces, others: Mapping[int, bytes]) -> Pieces:
    """The same pieces with others in some places."""
    widths = np.diff(pieces.ends)
    parts, kept = [], 0
    for place in sorted(others):
        parts += [pieces.blob[pieces.ends[kept] : pieces.ends[place]], others[place]]
        widths[place] = len(others[place])
        kept = place + 1
    parts.append(pieces.blob[pieces.ends[kept] :])
    ends = np.zeros_like(pieces.ends)
    np.cumsum(widths, out=ends[1:])
    return Pieces(b"".join(parts), ends)
