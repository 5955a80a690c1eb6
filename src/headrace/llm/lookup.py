"""Prompt-lookup speculation: the tokens of a sequence in, a guess at the next ones out.

Text that quotes or edits its prompt repeats long stretches of it: what followed the last occurrence of the latest n
tokens is a good guess. A guess costs one more row in a step and never changes the text: see `verify`.
Source: Saxena 2023, prompt lookup decoding; Leviathan et al. 2023, arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Lookup", "verify"]


def verify(draft: Sequence[int], chosen: Sequence[int]) -> int:
    """How many of `chosen` stand: chosen[0] always, chosen[i + 1] if chosen[: i + 1] equals draft[: i + 1].

    `chosen` has len(draft) + 1 tokens, the argmax (or the draw for that position) after the last token and after each
    of the draft. The first that differs from the draft is right itself; the rows after it follow a token that is not
    in the text. So 1 <= result <= len(draft) + 1, and the text is the one without speculation.
    """


class Lookup:
    """Guesses for one sequence; O(1) a token.

    Attributes:
        tokens: Prompt and answer so far.
    """

    def __init__(self, prompt_ids: Sequence[int], limit: int) -> None:
        """`limit` is the most tokens to guess at once (`SamplingParams.lookup`, 0 never guesses)."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take tokens that now stand in the answer."""

    def draft(self, room: int) -> list[int]:
        """Guess up to min(limit, room) next tokens; [] when nothing matches or guessing has not paid lately."""

    def record(self, drafted: int, accepted: int) -> None:
        """Tell how a guess went, so that guessing stops where it does not pay and is tried again later."""
