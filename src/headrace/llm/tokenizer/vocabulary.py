"""A vocabulary in a few flat arrays: tokens with their kinds flow in, ids come out for bytes and bytes for ids.

A list of 262,144 Python strings and a dictionary of them take 50 MB; these arrays take 4. The index is a hash table of
ids with linear probing: a slot is looked at only until an empty one, and a hit is compared byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.llm.tokenizer.pieces import Pieces

__all__ = ["BYTE", "CONTROL", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "Kinds", "Vocabulary"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of tokens, numbered as in GGUF's `tokenizer.ggml.token_type`."""

Kinds = npt.NDArray[np.int8]


class Vocabulary:
    """Tokens by id, and the ids of plain tokens by their bytes.

    Args:
        pieces: What each token stands for in a text, in the order of ids.
        kinds: int8[n], the kind of each.
        names: Texts by which tokens that are not plain are known ("<|im_end|>"), with their ids.
        reachable: Those tokens that merging can yield too, by the bytes it would find them under.
    """

    def __init__(
        self, pieces: Pieces, kinds: Kinds, names: Mapping[str, int], reachable: Mapping[bytes, int] | None = None
    ) -> None:
        self.names = names
        self._reachable = dict(reachable or {})
        self._blob = pieces.blob
        self._kinds = kinds.tobytes()
        self._ends = pieces.ends.data
        self._slots = _index(pieces, kinds == NORMAL).data
        self._mask = len(self._slots) - 1

    def __len__(self) -> int:
        return len(self._kinds)

    def find(self, piece: bytes) -> int:
        """The id of the token that stands for exactly these bytes, -1 if there is none."""
        slots, ends, blob, mask = self._slots, self._ends, self._blob, self._mask
        at = hash(piece) & mask
        while (token := slots[at]) >= 0:
            if blob[ends[token] : ends[token + 1]] == piece:
                return token
            at = (at + 1) & mask
        return self._reachable.get(piece, -1)

    def piece(self, token: int) -> bytes:
        """What a token stands for; `token` must be below `len(self)` and not negative."""
        return self._blob[self._ends[token] : self._ends[token + 1]]

    def kind(self, token: int) -> int:
        return self._kinds[token]

    def is_special(self, token: int) -> bool:
        """Whether a token is a mark of the model's own (begin, end, a role …), no text."""
        return self._kinds[token] in (CONTROL, UNKNOWN)

    def bytes_before(self, byte: bytes) -> set[int]:
        """Which bytes stand somewhere in a token directly before `byte`."""
        blob = np.frombuffer(self._blob, np.uint8)
        inside = blob == byte[0]
        begins = np.asarray(self._ends)
        inside[begins[begins < len(blob)]] = False
        found = set(blob[np.flatnonzero(inside) - 1].tolist())
        for piece in self._reachable:
            found.update(piece[at - 1] for at in range(1, len(piece)) if piece[at] == byte[0])
        return found

    def check(self, token: int) -> int:
        """Return `token` if there is such a token; raises `InvalidInput`."""
        if not 0 <= token < len(self._kinds):
            raise InvalidInput(f"token id {token}: expected one from 0 to {len(self._kinds) - 1}")
        return token

    def join(self, tokens: Iterable[int], skip_special: bool) -> bytes:
        """What tokens stand for together. Raises `InvalidInput` for an id that is not there."""
        kept = [self.check(token) for token in tokens]
        if skip_special:
            kept = [token for token in kept if not self.is_special(token)]
        return b"".join(map(self.piece, kept))


def _index(pieces: Pieces, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """int32[power of two]: the ids of the wanted pieces by the hash of their bytes, -1 where a slot is empty."""
    ends = pieces.ends.data
    hashes = np.fromiter((hash(pieces.blob[begin:end]) for begin, end in pairwise(ends)), np.int64, len(wanted))
    tokens = np.flatnonzero(wanted & (np.diff(pieces.ends) > 0)).astype(np.int32)
    size = 1 << max(4, (2 * len(tokens)).bit_length())
    slots = np.full(size, -1, np.int32)
    places = hashes[tokens] & (size - 1)
    while len(tokens):
        free = slots[places] < 0
        slots[places[free][::-1]] = tokens[free][::-1]  # of several that want a slot the lowest id gets it
        left = slots[places] != tokens
        tokens, places = tokens[left], (places[left] + 1) & (size - 1)
    return slots
