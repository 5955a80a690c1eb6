"""How many prompt tokens a step may hold while streams generate: measured steps in, that number out.

A step with prompt tokens should take no more than `1 + slack` times one without, so that a stream hardly notices the
prompt of another. Where more prompts wait than streams run, the prompts get more in proportion: a burst of requests is
then soon together in one batch, which costs less than to decode the first of them alone. Pure: `observe` returns the
next state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Pace"]

GRAIN = 16
"""Prompt tokens come in multiples of this, the rows of a matrix tile, where there may be as many."""

FEWEST = 4
"""Prompt tokens beside streams, however dear: a prompt has to get on."""

FIRST_SHARE = 32
"""Prompt tokens beside streams as long as nothing has been measured."""

WEIGHT = 0.2
"""Of the newest step in the moving averages."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What steps have cost.

    Attributes:
        slack: Time that prompt tokens may add to a step, as a share of its time without them.
        stream_s: Seconds of a step with 1, 2-3, 4-7, ... generated tokens and nothing else; 0 where unknown.
        prompt_token_s: Seconds that one more prompt token adds; 0 while unknown.
    """

    slack: float = 0.8
    stream_s: tuple[float, ...] = (0.0,) * 12
    prompt_token_s: float = 0.0

    def observe(self, n_generated: int, n_prompt: int, step_s: float) -> Pace:
        """After a step of so many tokens of each kind that took `step_s` seconds."""
        if n_prompt == 0:
            kind = self._kind(n_generated)
            mean = _towards(self.stream_s[kind], step_s)
            return replace(self, stream_s=(*self.stream_s[:kind], mean, *self.stream_s[kind + 1 :]))
        alone_s = self.stream_s[self._kind(n_generated)] if n_generated else 0.0
        if n_prompt < FEWEST or (n_generated and not alone_s):
            return self
        return replace(self, prompt_token_s=_towards(self.prompt_token_s, max(0.0, step_s - alone_s) / n_prompt))

    def prompt_share(self, n_generated: int, n_prompts: int, budget: int) -> int:
        """Most tokens of `n_prompts` prompts in a step of `n_generated` others; all of `budget` beside none."""
        if n_generated == 0:
            return budget
        alone_s = self.stream_s[self._kind(n_generated)]
        if not alone_s or not self.prompt_token_s:
            return min(budget, FIRST_SHARE)
        share = int(self.slack * max(1.0, n_prompts / n_generated) * alone_s / self.prompt_token_s)
        return min(budget, max(FEWEST, share // GRAIN * GRAIN if share >= GRAIN else share))

    def _kind(self, n_generated: int) -> int:
        return min(n_generated.bit_length(), len(self.stream_s)) - 1


def _towards(mean: float, sample: float) -> float:
    return sample if mean == 0 else mean + WEIGHT * (sample - mean)
