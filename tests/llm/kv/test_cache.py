"""Pages under a random workload: each accounted for after every operation, and what is found is what was written."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.llm.execution import PAGE_TOKENS
from headrace.llm.kv import KvCache, PageTable, make_policy
from headrace.llm.kv.policy import POLICIES, IdlePages


class Contrary:
    """Gives up first what others need most: pages that the most hangs below."""

    def decide(self, idle: IdlePages, count: int) -> np.ndarray:
        return np.argsort(idle.depth, kind="stable")[:count]


class Sequence:
    def __init__(self, tokens: list[int], table: PageTable) -> None:
        self.tokens, self.table = tokens, table
        self.computed = 0


class Workload(RuleBasedStateMachine):
    """Sequences that are computed, forked, preempted and ended over few pages, with few different tokens so that much
    is shared. `memory` is what an executor's pages would hold."""

    @initialize(n_pages=st.integers(2, 9), policy=st.sampled_from([*sorted(POLICIES), "contrary"]))
    def start(self, n_pages: int, policy: str) -> None:
        chosen = Contrary() if policy == "contrary" else make_policy(policy)
        self.kv = KvCache(n_pages, chosen)
        self.memory: list[list[int | None]] = [[None] * PAGE_TOKENS for _ in range(n_pages)]
        self.alive: list[Sequence] = []
        self.waiting: list[Sequence] = []

    def _admit(self, sequence: Sequence) -> None:
        available = self.kv.pool.available
        limit = len(sequence.tokens) - 1
        cost = sequence.table.cost(len(sequence.tokens), limit)
        sequence.computed = sequence.table.reuse(limit)
        need = sequence.table.needed(sequence.computed, len(sequence.tokens))
        assert available - self.kv.pool.available + need == cost
        self.alive.append(sequence)

    def _compute(self, sequence: Sequence, n: int) -> None:
        """The next n tokens, as far as they are known and pages allow."""
        start, table, available = sequence.computed, sequence.table, self.kv.pool.available
        room = table.room(start, available)
        end = start + min(n, len(sequence.tokens) - start, room)
        if end <= start:
            return
        needed = table.needed(start, end)
        assert needed <= available < table.needed(start, start + room + 1)
        copy = table.grow(start, end)
        assert available - self.kv.pool.available == needed
        if copy is not None:
            self.memory[copy[1]] = list(self.memory[copy[0]])
        for i in range(start, end):
            page = table.pages[i // PAGE_TOKENS]
            assert self.kv.pool.holders(page) == 1, "a page that others hold is written"
            self.memory[page][i % PAGE_TOKENS] = sequence.tokens[i]
        sequence.computed = end
        self.kv.commit(table, sequence.tokens, end, end)

    @rule(stem=st.integers(0, 3), n_stem=st.integers(0, 60), rest=st.lists(st.integers(0, 1), min_size=1, max_size=30))
    def arrive(self, stem: int, n_stem: int, rest: list[int]) -> None:
        prompt = [stem] * n_stem + rest
        sequence = Sequence(prompt, self.kv.table(self.kv.names(prompt)))
        self._admit(sequence)
        self._compute(sequence, 100)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), n=st.integers(1, 40), token=st.integers(0, 1))
    def generate(self, data: st.DataObject, n: int, token: int) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        if sequence.computed == len(sequence.tokens):
            sequence.tokens += [token] * n
        self._compute(sequence, n)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.alive))
        if len(parent.table.pages) * PAGE_TOKENS >= parent.computed + PAGE_TOKENS:
            return
        child = Sequence(list(parent.tokens), self.kv.fork(parent.table))
        child.computed = parent.computed
        self.alive.append(child)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.alive.remove(sequence)
        sequence.table.release()
        self.waiting.append(sequence)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(sequence)
        self._admit(sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.alive.remove(sequence)
        sequence.table.release()

    @rule()
    def clear(self) -> None:
        self.kv.pool.clear()

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        if hasattr(self, "kv"):
            self.kv.check_integrity()

    @invariant()
    def pages_hold_what_was_computed(self) -> None:
        for sequence in getattr(self, "alive", ()):
            held = [place for page in sequence.table.pages for place in self.memory[page]]
            assert held[: sequence.computed] == sequence.tokens[: sequence.computed]

    def teardown(self) -> None:
        for sequence in getattr(self, "alive", ()):
            sequence.table.release()
        if hasattr(self, "kv"):
            assert self.kv.pool.held == 0
            self.kv.pool.clear()
            assert self.kv.pool.cached == 0
            self.kv.check_integrity()


TestWorkload = Workload.TestCase
TestWorkload.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def _filled(kv: KvCache, prompt: list[int]) -> PageTable:
    table = kv.table(kv.names(prompt))
    table.reuse(len(prompt) - 1)
    table.grow(0, len(prompt))
    kv.commit(table, prompt, len(prompt), len(prompt))
    return table


def test_a_page_is_shared_as_soon_as_it_is_full() -> None:
    kv = KvCache(8, make_policy("lru"))
    prompt = list(range(40))
    first = _filled(kv, prompt)
    second = kv.table(kv.names(prompt))
    assert second.reuse(39) == 32
    assert second.pages == first.pages[:2]
    assert kv.pool.held == 3


def test_two_that_computed_the_same_end_up_with_one_copy() -> None:
    kv = KvCache(8, make_policy("lru"))
    prompt = list(range(32))
    tables = [kv.table(kv.names(prompt)) for _ in range(2)]
    for table in tables:
        assert table.reuse(31) == 0
        table.grow(0, 32)
    for table in tables:
        table.synced = 2
        kv.commit(table, prompt, 32, 32)
    assert tables[0].pages == tables[1].pages
    assert kv.pool.held == 2
    assert [table.synced for table in tables] == [2, 0]


def test_an_answer_is_found_when_the_next_turn_brings_it_as_a_prompt() -> None:
    tokens = list(range(33))
    kv = KvCache(8, make_policy("lru"))
    answer = kv.table(kv.names(tokens[:16]))
    answer.grow(0, 32)
    kv.commit(answer, tokens, 32, 32)
    assert kv.table(kv.names(tokens)).reuse(32) == 32


def test_prefixes_with_other_beginnings_are_others() -> None:
    kv = KvCache(8, make_policy("lru"))
    _filled(kv, [1] * 16 + [2] * 16)
    assert kv.table(kv.names([3] * 16 + [2] * 16)).reuse(32) == 0


def test_who_shares_a_partly_filled_page_copies_it_before_writing() -> None:
    kv = KvCache(8, make_policy("lru"))
    parent = _filled(kv, list(range(20)))
    child = kv.fork(parent)
    assert child.pages == parent.pages
    assert parent.needed(20, 21) == child.needed(20, 21) == 1
    source, target = parent.grow(20, 21) or (-1, -1)
    assert source == child.pages[1]
    assert target == parent.pages[1]
    assert child.grow(20, 21) is None, "the child has it for itself now"
