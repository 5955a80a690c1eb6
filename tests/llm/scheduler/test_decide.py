"""One step's plan, decided from numbers alone: budgets kept, streams first, somebody always gets on."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from headrace.llm.execution import PAGE_TOKENS
from headrace.llm.scheduler.decide import Newcomer, State, admission, decide


@dataclass(frozen=True)
class Stand:
    """A sequence of `computed` + `pending` tokens that holds `n_pages`."""

    pending: int
    n_guesses: int = 0
    computed: int = 0
    n_pages: int = 0
    priority: int = 0

    def needed(self, n_tokens: int) -> int:
        return max(0, -(-(self.computed + n_tokens) // PAGE_TOKENS) - self.n_pages)

    def room(self, pages: int) -> int:
        return (self.n_pages + pages) * PAGE_TOKENS - self.computed


@st.composite
def stands(draw: st.DrawFn) -> Stand:
    pending = draw(st.sampled_from([1, 1, 1, draw(st.integers(2, 900))]))
    computed = draw(st.integers(0, 200))
    spare = draw(st.integers(0, 2))
    guesses = draw(st.integers(0, 5)) if pending == 1 else 0
    return Stand(pending, guesses, computed, -(-computed // PAGE_TOKENS) + spare, draw(st.integers(-1, 1)))


@st.composite
def states(draw: st.DrawFn) -> State[Stand]:
    running = sorted(draw(st.lists(stands(), max_size=10)), key=lambda job: -job.priority)
    return State(
        running,
        pages=draw(st.sampled_from([0, 1, 2, 5, 100, 1000])),
        budget=draw(st.sampled_from([10, 16, 100, 512])),
        prompt_share=draw(st.sampled_from([4, 16, 64])),
        guess_share=draw(st.sampled_from([0, 4, 8])),
    )


@given(state=states())
def test_every_plan_keeps_to_what_there_is(state: State[Stand]) -> None:
    plan = decide(state)
    if plan.preempt is not None:
        assert plan.run == []
        assert plan.preempt is state.running[-1]
        return
    assert sum(n for _, n in plan.run) <= state.budget
    assert sum(job.needed(n) for job, n in plan.run) <= state.pages
    assert len({id(job) for job, _ in plan.run}) == len(plan.run)
    streams = [(job, n) for job, n in plan.run if job.pending == 1]
    prompts = [(job, n) for job, n in plan.run if job.pending > 1]
    assert [job for job, _ in streams] == [job for job in state.running if job.pending == 1], "a stream was left out"
    assert all(1 <= n <= 1 + job.n_guesses for job, n in streams)
    assert all(1 <= n <= job.pending for job, n in prompts)
    if any(n > 1 for _, n in streams):
        assert sum(n for _, n in streams) <= state.guess_share
    if streams:
        assert sum(n for _, n in prompts) <= state.prompt_share
    assert plan.run or not state.running


@given(state=states())
def test_preempting_ends_and_leaves_the_first(state: State[Stand]) -> None:
    """Every preemption gives pages back; with all pages but its own free, the first in line gets on."""
    running, pages = list(state.running), state.pages + 1000
    for _ in range(len(running) + 1):
        plan = decide(State(running, pages, state.budget, state.prompt_share, state.guess_share))
        if plan.preempt is None:
            break
        pages += running.pop().n_pages
    assert plan.preempt is None
    assert not state.running or plan.run


def test_a_long_prompt_takes_no_more_than_its_share_beside_streams() -> None:
    streams = [Stand(1, computed=5, n_pages=1)] * 8
    plan = decide(State([Stand(4000), *streams], 1000, 512, prompt_share=32, guess_share=8))
    assert sorted(n for _, n in plan.run) == [1] * 8 + [32]
    assert decide(State([Stand(4000)], 1000, 512, prompt_share=32, guess_share=8)).run[0][1] == 512


def test_short_prompts_pass_a_long_one_and_the_long_one_gets_half() -> None:
    long, short, shorter = Stand(4000), Stand(100), Stand(60)
    plan = decide(State([long, short, shorter], 1000, 512, prompt_share=32, guess_share=8))
    assert {id(job): n for job, n in plan.run} == {id(long): 352, id(short): 100, id(shorter): 60}
    plan = decide(State([long, short, shorter], 1000, 100, prompt_share=32, guess_share=8))
    assert {id(job): n for job, n in plan.run} == {id(long): 50, id(shorter): 50}


def test_a_stream_without_a_page_costs_the_last_in_line_its_own() -> None:
    first, last = Stand(1, computed=16, n_pages=1), Stand(1, computed=20, n_pages=2)
    assert decide(State([first, last], 0, 512, 32, 8)).preempt is last
    assert decide(State([last, first], 0, 512, 32, 8)).preempt is first, "even when it is the one in need"


def test_a_prompt_out_of_pages_waits_for_equals_and_pushes_out_lesser_ones() -> None:
    stream = Stand(1, computed=5, n_pages=1)
    starved = Stand(50, computed=16, n_pages=1)
    assert decide(State([starved, stream], 0, 512, 32, 8)).run == [(stream, 1)]
    greater = Stand(50, computed=16, n_pages=1, priority=1)
    assert decide(State([greater, stream], 0, 512, 32, 8)).preempt is stream


def test_guesses_go_only_where_there_is_room_for_them() -> None:
    tight, roomy = Stand(1, 3, computed=15, n_pages=1), Stand(1, 3, computed=4, n_pages=1)
    assert decide(State([tight, roomy], 0, 512, 32, 8)).run == [(tight, 1), (roomy, 4)]
    assert decide(State([tight, roomy], 1, 512, 32, 8)).run == [(tight, 4), (roomy, 4)]
    assert decide(State([tight, roomy], 1, 512, 32, 4)).run == [(tight, 3), (roomy, 1)]


def test_admission() -> None:
    running = [Stand(1, computed=16, n_pages=1), Stand(100, computed=0, n_pages=0)]
    # the first takes 1 page for its next token, the second 7 for its prompt; one more each is kept for later
    assert admission(Newcomer(0, 5), running, 15, slots=1) == "admit"
    assert admission(Newcomer(0, 5), running, 14, slots=1) == "wait"
    assert admission(Newcomer(0, 5), running, 15, slots=0) == "wait"
    assert admission(Newcomer(1, 5), running, 14, slots=1) == "preempt"
    assert admission(Newcomer(1, 5), running, 15, slots=0) == "preempt"
    assert admission(Newcomer(0, 15), [], 15, slots=1) == "admit"
    assert admission(Newcomer(1, 16), [], 15, slots=1) == "wait"
