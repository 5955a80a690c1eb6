"""Whose turn it is: by priority, then evenly among tenants, then in order of arrival."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from headrace.llm.scheduler.queue import FairQueue


@dataclass(frozen=True)
class Guest:
    arrival: int
    tenant: str = ""
    priority: int = 0


def _drain(queue: FairQueue[Guest], tokens: int = 100) -> list[Guest]:
    served = []
    while queue.first() is not None:
        guest = queue.take()
        queue.charge(guest, tokens)
        served.append(guest)
    return served


@given(guests=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), max_size=30), data=st.data())
def test_everybody_is_served_once_or_removed(guests: list[tuple[str, int]], data: st.DataObject) -> None:
    queue: FairQueue[Guest] = FairQueue()
    every = [Guest(i, tenant, priority) for i, (tenant, priority) in enumerate(guests)]
    for guest in data.draw(st.permutations(every)):
        queue.add(guest)
    assert len(queue) == len(every)
    assert set(queue) == set(every)
    gone = data.draw(st.sets(st.sampled_from(every))) if every else set()
    for guest in gone:
        queue.remove(guest)
    served = _drain(queue)
    assert sorted(served, key=lambda guest: guest.arrival) == [guest for guest in every if guest not in gone]
    assert [guest.priority for guest in served] == sorted((guest.priority for guest in served), reverse=True)
    assert len(queue) == 0
    assert queue.first() is None


def test_a_tenant_with_one_request_does_not_wait_for_one_with_a_hundred() -> None:
    queue: FairQueue[Guest] = FairQueue()
    for i in range(100):
        queue.add(Guest(i, "many"))
    for _ in range(3):
        queue.charge(queue.take(), 50)
    queue.add(Guest(100, "one"))
    assert queue.first() == Guest(100, "one")


def test_tenants_share_by_tokens_not_by_requests() -> None:
    queue: FairQueue[Guest] = FairQueue()
    for i in range(0, 120, 2):
        queue.add(Guest(i, "long"))
        queue.add(Guest(i + 1, "short"))
    had: Counter[str] = Counter()
    for _ in range(40):
        guest = queue.take()
        tokens = 300 if guest.tenant == "long" else 100
        queue.charge(guest, tokens)
        had[guest.tenant] += tokens
    assert abs(had["long"] - had["short"]) <= 300


def test_who_comes_back_has_no_claim_on_the_past() -> None:
    """A tenant that was away gets its turn, not all the turns that it did not ask for."""
    queue: FairQueue[Guest] = FairQueue()
    for i in range(50):
        queue.add(Guest(i, "here"))
    for _ in range(20):
        queue.charge(queue.take(), 100)
    for i in range(50, 100):
        queue.add(Guest(i, "back"))
    tenants = []
    for _ in range(10):
        guest = queue.take()
        queue.charge(guest, 100)
        tenants.append(guest.tenant)
    assert 4 <= tenants.count("here") <= 6


def test_a_preempted_one_comes_back_to_its_old_place() -> None:
    queue: FairQueue[Guest] = FairQueue()
    for i in range(4):
        queue.add(Guest(i))
    first, _ = queue.take(), queue.take()
    queue.add(first)
    assert [guest.arrival for guest in _drain(queue)] == [0, 2, 3]


def test_tenants_and_priorities_without_end_are_forgotten() -> None:
    queue: FairQueue[Guest] = FairQueue()
    for i in range(5000):
        queue.add(Guest(i, f"tenant {i}", priority=i % 2500))
        queue.charge(queue.take(), 10)
    assert len(queue._levels) < 2000
    for i in range(5000):
        queue.add(Guest(i, f"tenant {i}"))
        queue.charge(queue.take(), 10)
    assert len(queue._levels[0]._clocks) < 2000
