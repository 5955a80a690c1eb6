"""Chooses tokens: a row of logits and what a sequence has seen so far in, one token and its log-probabilities out.

A `Sampler` belongs to one answer of one request. The engine asks it `greedy` when it plans a step: such a row needs only
its argmax, and the sampler is never called for it. The other rows of a step go through `sample_rows` (or
`sample_drafts`, with speculated tokens) in one native call that drops the GIL. Filters are applied in this order: logit
bias, penalties, grammar mask, temperature, top-k, top-p, min-p, typical; the draw at position i depends on nothing but
the seed, i and the filtered logits of that row.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import HeadraceError, InvalidInput, StageFailed
from headrace.llm.grammar import Matcher
from headrace.llm.params import SamplingParams

__all__ = ["Sample", "Sampler", "sample_drafts", "sample_rows"]

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int32]


class Sample(NamedTuple):
    """What came of one row.

    Attributes:
        token: The chosen id, -1 where there is an error.
        logprob: Natural log of its probability under the model alone, before any filter. 0 unless logprobs are asked.
        top: The likeliest (token, logprob), most likely first, lower ids first among equals; as many as asked.
        error: Why this row gave no token; the other rows of the step are not touched by it.
    """

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()
    error: HeadraceError | None = None


class Sampler:
    """The choice of tokens for answer `index` of a request. Not thread-safe; lives as long as the sequence does,
    preempted or not.

    Attributes:
        greedy: True when the argmax of the raw logits is the answer, so that no logits are needed: temperature 0 and
            no penalty, bias, grammar or logprobs.
        seed: The seed in use: the request's, or a fresh one where it has none.
        position: Tokens accepted so far, which is the position the next one is drawn for.
        matcher: The state of the grammar, or None.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Sequence[int],
        *,
        index: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        """`params` have passed `check(vocab_size)`. `prompt_ids` count for the repetition penalty. `matcher` comes from
        `headrace.llm.grammar`, one for each answer, where `params.grammar` is set."""

    @property
    def finished(self) -> bool:
        """True once the grammar is complete and nothing may follow: end the answer with reason "stop"."""

    def sample(self, row: Floats) -> Sample:
        """Choose from float32[vocab]; raises the row's error. The token is not accepted yet."""

    def accept(self, token: int) -> None:
        """Count `token` as the next one of the answer. Also needed for greedy samplers. End-of-text tokens that end the
        answer need not be accepted. Raises `InvalidInput` when the grammar does not allow the token."""


def sample_rows(samplers: Sequence[Sampler], logits: Floats, rows: Sequence[int]) -> list[Sample]:
    """Choose a token for each sampler, samplers[i] from logits[rows[i]], in one native call; accepts none of them.

    Args:
        samplers: Of different sequences, none of them greedy.
        logits: float32[n, vocab], C-contiguous: `Output.logits` of the step.
        rows: Which row belongs to which sampler.
    """


def sample_drafts(
    samplers: Sequence[Sampler], logits: Floats, rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[list[Sample]]:
    """Choose tokens where some were speculated, and accept them.

    Sequence i has len(drafts[i]) + 1 rows of logits from rows[i] on: what follows its last token, then what follows
    each speculated one. Tokens are chosen row after row as if each had been alone, until one differs from the draft
    (it is right, what was computed after the draft is not) or the rows are used up. So the text is the one without
    speculation, and each sequence gets 1 to len(drafts[i]) + 1 tokens. A sample with an error ends its sequence's list.
    Tokens in `stop_ids` end it too.
    """
