"""After a step: the executor's output in, the next tokens of every answer that is due some out.

Guessed tokens are checked here: what stands is what would have been chosen without them, for draws as for the argmax,
because a choice depends on nothing but the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.errors import HeadraceError, StageFailed
from headrace.llm.execution import Output
from headrace.llm.lookup import verify
from headrace.llm.sampler import Sample, Sampler, sample_drafts

__all__ = ["Choice", "Due", "choose"]


class Due(NamedTuple):
    """An answer that is due tokens: its sampler, the first of its rows in `Batch.rows` order, and the guesses that each
    have a row after it. `fresh`: the rows are its own; a branch reads those of the answer before it once more."""

    sampler: Sampler
    guesses: Sequence[int]
    fresh: bool = True


class Choice(NamedTuple):
    """`tokens` follow the answer, at least one unless there is an `error`; `samples` are theirs, if they were drawn."""

    tokens: Sequence[int]
    samples: Sequence[Sample] = ()
    error: HeadraceError | None = None


def choose(due: Sequence[Due], output: Output) -> list[Choice]:
    """One choice for each answer, in order; `due` is in the order of the batch."""
    argmax: list[int] = output.argmax.tolist()
    choices: list[Choice | None] = []
    samplers, rows, drafts = [], [], []
    row = drawn_row = end = drawn_end = 0
    for sampler, guesses, fresh in due:
        if fresh:
            row, drawn_row = end, drawn_end
            end += len(guesses) + 1
            drawn_end += 0 if sampler.greedy else len(guesses) + 1
        if sampler.greedy:
            choices.append(_greedy(guesses, argmax[row : row + len(guesses) + 1]))
        else:
            choices.append(None)
            samplers.append(sampler)
            rows.append(drawn_row)
            drafts.append(guesses)
    drawn = iter(sample_drafts(samplers, output.logits, rows, drafts) if samplers else ())
    return [choice or _drawn(next(drawn)) for choice in choices]


def _greedy(guesses: Sequence[int], argmax: list[int]) -> Choice:
    tokens = argmax[: verify(guesses, argmax)] if guesses else argmax
    if -1 in tokens:
        return Choice((), error=StageFailed("model", "the logits hold a NaN; weights or activations are out of range"))
    return Choice(tokens)


def _drawn(samples: list[Sample]) -> Choice:
    error = samples[-1].error
    return Choice([sample.token for sample in samples], samples) if error is None else Choice((), (), error)
