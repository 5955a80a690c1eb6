"""What one step computes, as a pure function: running sequences, free pages and budgets in, a plan out.

Streams that are generating come first, one token each, so that nothing a newcomer brings can keep them waiting by more
than the prompt tokens allowed beside them. What is left of the budget goes to guesses, then to prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

__all__ = ["Job", "Newcomer", "Plan", "State", "Verdict", "admission", "decide"]

Verdict: TypeAlias = Literal["admit", "wait", "preempt"]


class Job(Protocol):
    """A sequence that holds pages, as far as a decision depends on it.

    Attributes:
        priority: Higher is served first.
        pending: Tokens known but not computed, at least 1. It is 1 while the sequence generates.
        n_guesses: Guessed tokens that may be computed after the pending one.
    """

    @property
    def priority(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def n_guesses(self) -> int: ...

    def needed(self, n_tokens: int) -> int:
        """Pages to take so that the next `n_tokens` can be computed."""
        ...

    def room(self, pages: int) -> int:
        """Tokens that can be computed next when `pages` can be taken."""
        ...


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class State(Generic[J]):
    """What a step may use.

    Attributes:
        running: First in line first; the last is the first to be preempted. No more of them than `budget`.
        pages: Pages that can be taken.
        budget: Most tokens of a step.
        prompt_share: Most tokens of prompts in a step in which streams generate.
        guess_share: Most tokens of generating streams in a step, guesses included, where there are guesses.
    """

    running: Sequence[J]
    pages: int
    budget: int
    prompt_share: int
    guess_share: int


@dataclass(frozen=True, slots=True)
class Plan(Generic[J]):
    """Either the sequences of the step with their numbers of tokens, or one to preempt before deciding again."""

    run: list[tuple[J, int]]
    preempt: J | None = None


def decide(state: State[J]) -> Plan[J]:
    """The next step. Whoever is first in line always runs or keeps what it holds."""
    pages, run, prefilling = state.pages, [], []
    for job in state.running:
        if job.pending > 1:
            prefilling.append(job)
            continue
        needed = job.needed(1)
        if needed > pages:
            return Plan([], preempt=state.running[-1])
        pages -= needed
        run.append((job, 1))
    left = state.budget - len(run)
    guesses = min(left, state.guess_share - len(run))
    for i, (job, _) in enumerate(run):
        if guesses <= 0:
            break
        n = min(job.n_guesses, guesses, job.room(pages) - 1)
        if n > 0:
            pages -= job.needed(1 + n) - job.needed(1)
            run[i] = (job, 1 + n)
            guesses, left = guesses - n, left - n
    starved = None
    for job, wanted in _portions(prefilling, min(left, state.prompt_share) if run else left):
        n = min(wanted, job.room(pages))
        if n > 0:
            pages -= job.needed(n)
            run.append((job, n))
        elif wanted:
            starved = starved or job
    if starved is not None and (not run or state.running[-1].priority < starved.priority):
        return Plan([], preempt=state.running[-1])
    return Plan(run)


def _portions(prefilling: Sequence[J], tokens: int) -> list[tuple[J, int]]:
    """Who computes how much of its prompt: half for the first in line, half for the shortest of the others, so that
    neither a long prompt holds up short ones nor short ones a long one."""
    if not prefilling:
        return []
    first = prefilling[0]
    others = sorted(prefilling[1:], key=lambda job: job.pending)
    left = tokens - min(first.pending, tokens - tokens // 2 if others else tokens)
    portions = []
    for job in others:
        n = min(job.pending, left)
        portions.append((job, n))
        left -= n
    spent = sum(n for _, n in portions)
    return [(first, min(first.pending, tokens - spent)), *portions]


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A sequence that holds nothing yet: its priority, and the pages that all its known tokens would take."""

    priority: int
    pages: int


def admission(newcomer: Newcomer, running: Sequence[Job], pages: int, slots: int) -> Verdict:
    """Whether the first in the queue may start, has to wait, or may push out the last of the running.

    It starts when its known tokens fit beside what the running ones need for theirs and one page more for each, so
    that it is not preempted at once. Only a higher priority pushes out.
    """
    spare = pages - sum(job.needed(job.pending) + 1 for job in running)
    if slots > 0 and newcomer.pages <= spare:
        return "admit"
    return "preempt" if running and running[-1].priority < newcomer.priority else "wait"
