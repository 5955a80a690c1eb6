"""Prompt-lookup speculation: the tokens of a sequence in, a guess at the next ones out.

Text that quotes or edits its prompt repeats long stretches of it: what followed the last occurrence of the latest two
or three tokens is a good guess. A guess costs more rows in a step and never changes the text: see `verify`.
Source: Saxena 2023, prompt lookup decoding; Leviathan et al. 2023, arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Lookup", "verify"]

# Estimates, but for the order; what they have to do is tested: right guesses go on, wrong ones nearly cease.
ORDERS = (3, 2, 1)  # tokens that have to agree, best first
TRUST = 0.5  # recent rate of right guesses above which one token in agreement is enough
DOUBT = 0.2  # below this, guessing stops for a while
LEARNING = 0.3  # weight of the latest guess in the rate
PAUSES = (8, 512)  # tokens written without a guess: after the first failure, and at most


def verify(draft: Sequence[int], chosen: Sequence[int]) -> int:
    """How many of `chosen` stand: chosen[0] always, chosen[i + 1] if chosen[: i + 1] equals draft[: i + 1].

    `chosen` has len(draft) + 1 tokens, the argmax (or the draw for that position) after the last token and after each
    of the draft. The first that differs from the draft is right itself; the rows after it follow a token that is not
    in the text. So 1 <= result <= len(draft) + 1, and the text is the one without speculation.
    """
    for right, (guessed, token) in enumerate(zip(draft, chosen, strict=False)):
        if guessed != token:
            return right + 1
    return len(draft) + 1


class Lookup:
    """Guesses for one sequence; O(1) a token.

    Attributes:
        tokens: Prompt and answer so far.
    """

    def __init__(self, prompt_ids: Sequence[int], limit: int) -> None:
        """`limit` is the most tokens to guess at once (`SamplingParams.lookup`, 0 never guesses)."""
        self.tokens: list[int] = []
        self._limit = limit
        # For each order, n-gram -> place of the token that followed its last occurrence.
        self._followers: dict[int, dict[tuple[int, ...], int]] = {order: {} for order in ORDERS}
        self._width = limit
        self._rate = TRUST
        self._pause = PAUSES[0]
        self._resume = 0
        self.extend(prompt_ids)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take tokens that now stand in the answer."""
        known = self.tokens
        for token in tokens:
            for order, followers in self._followers.items():
                if len(known) >= order:
                    followers[tuple(known[-order:])] = len(known)
            known.append(token)

    def draft(self, room: int) -> list[int]:
        """Guess up to min(limit, room) next tokens; [] when nothing matches or guessing has not paid lately."""
        count = min(self._width, room)
        if count <= 0 or len(self.tokens) < self._resume:
            return []
        for order in ORDERS:
            if order == 1 and self._rate <= TRUST:
                break
            begin = self._followers[order].get(tuple(self.tokens[-order:]))
            if begin is not None:
                # What reaches the end goes on from its beginning: the text repeats itself with that period.
                period = len(self.tokens) - begin
                return [self.tokens[begin + i % period] for i in range(count)]
        return []

    def record(self, drafted: int, accepted: int) -> None:
        """Tell how many of a guess were right, so that guesses grow where they pay, and stop for a while where not."""
        if drafted <= 0:
            return
        self._rate += LEARNING * (accepted / drafted - self._rate)
        self._width = min(self._limit, 2 * self._width if accepted == drafted else accepted + 1)
        if self._rate < DOUBT:
            self._resume = len(self.tokens) + self._pause
            self._pause = min(2 * self._pause, PAUSES[1])
            self._rate = TRUST
        elif self._rate > TRUST:
            self._pause = PAUSES[0]
