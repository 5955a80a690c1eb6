"""Chooses tokens: a row of logits and what a sequence has seen so far in, one token and its log-probabilities out.

A `Sampler` belongs to one answer of one request. The engine asks it `greedy` when it plans a step: such a row needs
only its argmax, and the sampler is not called for it. The other rows of a step go through `sample_rows` (or
`sample_drafts`, with speculated tokens) in one native call that drops the GIL. Filters are applied in this order: logit
bias, penalties, grammar mask, temperature, top-k, top-p, min-p, typical; the draw at position i depends on nothing but
the seed, i and the filtered logits of that row.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import HeadraceError, InvalidInput, StageFailed
from headrace.llm.execution import Floats
from headrace.llm.grammar import Matcher
from headrace.llm.params import SamplingParams

__all__ = ["Sample", "Sampler", "sample_drafts", "sample_rows"]


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
        position: Tokens accepted so far, which is the position the next one is drawn for.
        matcher: The state of the grammar, or None.
        narrowed_by: What leaves no token, where none is left to choose from.
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
        seed = secrets.randbits(63) if params.seed is None else params.seed
        self.matcher = matcher
        narrowing = (("logit_bias", params.logit_bias), ("grammar", matcher))
        self.narrowed_by = " and ".join(name for name, given in narrowing if given) or "the model's logits"
        self.greedy = (
            params.temperature == 0
            and params.repetition_penalty == 1
            and params.presence_penalty == params.frequency_penalty == 0
            and not params.logit_bias
            and params.logprobs is None
            and matcher is None
        )
        self._native = _native.TokenSampler(
            vocab_size,
            np.asarray(prompt_ids if params.repetition_penalty != 1 else (), np.int32),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            bias=list(params.logit_bias.items()),
            seed=seed % 2**64,
            index=index,
            logprobs=-1 if params.logprobs is None else params.logprobs,
        )

    @property
    def position(self) -> int:
        return self._native.position

    @property
    def finished(self) -> bool:
        """True once the grammar is complete and nothing may follow: end the answer with reason "stop"."""
        return self.matcher is not None and self.matcher.finished

    def sample(self, row: Floats) -> Sample:
        """Choose from float32[vocab]; raises the row's error. The token is not accepted yet."""
        (chosen,) = sample_rows([self], row.reshape(1, -1), [0])
        if chosen.error is not None:
            raise chosen.error
        return chosen

    def accept(self, token: int) -> None:
        """Count `token` as the next one of the answer. An end-of-text token that ends the answer need not be accepted,
        nor any by a greedy sampler. Raises `InvalidInput` when the vocabulary or grammar has no such token here."""
        if self.matcher is not None:
            self.matcher.accept(token)
        self._native.accept(token)


def sample_rows(samplers: Sequence[Sampler], logits: Floats, rows: Sequence[int]) -> list[Sample]:
    """Choose a token for each sampler, samplers[i] from logits[rows[i]], in one native call; accepts none of them.

    Args:
        samplers: Of different sequences.
        logits: float32[n, vocab], C-contiguous: `Output.logits` of the step.
        rows: Which row belongs to which sampler.
    """
    masks: list[npt.NDArray[np.uint32] | None] = []
    failed: dict[int, Sample] = {}
    for i, sampler in enumerate(samplers):
        mask = None
        if sampler.matcher is not None:
            try:
                mask = sampler.matcher.mask()
            except HeadraceError as error:
                failed[i] = Sample(-1, error=error)
        masks.append(mask)
    drawn = _native.sample_rows([sampler._native for sampler in samplers], logits, rows, masks)
    return [failed.get(i) or _sample(samplers[i].narrowed_by, *one) for i, one in enumerate(drawn)]


def sample_drafts(
    samplers: Sequence[Sampler], logits: Floats, rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[list[Sample]]:
    """Choose tokens where some were speculated, and accept them.

    Sequence i has len(drafts[i]) + 1 rows of logits from rows[i] on: what follows its last token, then what follows
    each speculated one. Tokens are chosen row after row as if each had been alone, until one differs from the draft
    (it is right; the rows after it follow a token that is not in the text) or the rows are used up. So the text is the
    one without speculation, and a sequence gets 1 to len(drafts[i]) + 1 samples; one with an error is its last.
    """
    chosen: list[list[Sample]] = [[] for _ in samplers]
    going = list(range(len(samplers)))
    while going:
        at = [rows[i] + len(chosen[i]) for i in going]
        drawn = sample_rows([samplers[i] for i in going], logits, at)
        for i, one in zip(going, drawn, strict=True):
            chosen[i].append(one if one.error is not None else _accepted(samplers[i], one))
        going = [i for i in going if _stands(chosen[i], drafts[i]) and not samplers[i].finished]
    return chosen


def _accepted(sampler: Sampler, chosen: Sample) -> Sample:
    try:
        sampler.accept(chosen.token)
    except HeadraceError as error:
        return Sample(-1, error=error)
    return chosen


def _stands(chosen: Sequence[Sample], draft: Sequence[int]) -> bool:
    """Whether the last choice is the speculated one, so that the next row follows it."""
    last = len(chosen) - 1
    return last < len(draft) and chosen[last].token == draft[last]


def _sample(narrowed_by: str, status: int, token: int, logprob: float, top: tuple[tuple[int, float], ...]) -> Sample:
    if status == 0:
        return Sample(token, logprob, top)
    if status == 1:
        return Sample(-1, error=StageFailed("sampler", "the model's logits hold a NaN or an infinity"))
    return Sample(-1, error=InvalidInput(f"{narrowed_by}: no token is left to choose from"))
