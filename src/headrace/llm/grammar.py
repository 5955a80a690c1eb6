"""Constrained output: a grammar and a vocabulary in, for each step the tokens that may come next out.

`GrammarFactory` holds the vocabulary in llguidance's form, built on first use; `factory.matcher(grammar)` makes the state
of one answer. Malformed or hostile grammars raise `InvalidInput` with the library's words before any token is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.llm.params import Grammar

__all__ = ["GrammarFactory", "Matcher"]


class GrammarFactory:
    """One per engine; thread-safe. Costs nothing until the first grammar is asked for."""

    def __init__(self, token_bytes: Callable[[int], bytes], vocab_size: int, *, special_ids: Sequence[int],
                 eos_ids: Sequence[int]) -> None:
        """Args:
            token_bytes: The bytes a token stands for, for ids 0 up to `vocab_size`.
            vocab_size: Width of the logits.
            special_ids: Control tokens, which no text may produce.
            eos_ids: Tokens that end an answer (at least one), allowed where the grammar may end.
        """

    def matcher(self, grammar: Grammar) -> Matcher:
        """The state of one answer at its beginning. Raises `InvalidInput`, and `MissingExtra` without llguidance."""


class Matcher:
    """Where one answer stands in its grammar.

    Attributes:
        finished: Nothing but an end-of-text token may follow.
    """

    def mask(self) -> npt.NDArray[np.uint32]:
        """uint32[(vocab + 31) // 32]: bit t % 32 of word t // 32 is set where token t may come next. Valid until the
        next call."""

    def accept(self, token: int) -> None:
        """Move on by `token`; raises `InvalidInput` when it may not come."""

    def copy(self) -> Matcher:
        """An independent twin in the same state, for another answer of the same request."""
