"""Which pages go first, decided from what is known of them and nothing else."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from headrace.errors import ConfigError
from headrace.llm.kv.policy import POLICIES, IdlePages, ScorePolicy, make_policy


def _idle(*pages: tuple[float, float, float, float]) -> IdlePages:
    return IdlePages(*np.array(pages, np.float64).reshape(-1, 4).T)


PAGES = st.lists(
    st.tuples(st.integers(1, 1000), st.floats(0, 100), st.sampled_from([0.5, 1.0]), st.integers(0, 500)),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(pages=PAGES, data=st.data())
def test_every_policy_names_that_many_different_pages(name: str, pages: list, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(pages)))
    chosen = make_policy(name).decide(_idle(*pages), count).tolist()
    assert len(set(chosen)) == count
    assert set(chosen) <= set(range(len(pages)))


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(pages=PAGES, data=st.data())
def test_fewer_are_the_first_of_more(name: str, pages: list, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(pages)))
    distinct = [(a, age, c, depth + 1000 * i) for i, (a, age, c, depth) in enumerate(pages)]
    policy = make_policy(name)
    every = policy.decide(_idle(*distinct), len(distinct)).tolist()
    assert policy.decide(_idle(*distinct), count).tolist() == every[:count]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_among_equals_the_deepest_goes_first(name: str) -> None:
    assert make_policy(name).decide(_idle((3, 1, 1, 0), (3, 1, 1, 2), (3, 1, 1, 1)), 3).tolist() == [1, 2, 0]


def test_lru_and_lfu_differ() -> None:
    idle = _idle((9, 5.0, 1, 0), (1, 0.1, 1, 0))
    assert make_policy("lru").decide(idle, 1).tolist() == [0]
    assert make_policy("lfu").decide(idle, 1).tolist() == [1]
    assert make_policy("lfu").decide(_idle((2, 0.1, 1, 0), (2, 5.0, 1, 0)), 1).tolist() == [1]


def test_the_score_weighs_frequency_recency_and_contiguity() -> None:
    policy = ScorePolicy(half_life=1.0)
    # With a half-life of 1 and an age of 4, 14 accesses count as 7: 0.45 * 1 + 0.35 / 16 + 0.2 * 0.5 = 0.572
    often = (14.0, 4.0, 0.5, 0)
    # 0.45 * log(2) / log(8) + 0.35 * 1 + 0.2 * contiguity = 0.5 + 0.2 * contiguity
    assert policy.decide(_idle(often, (1.0, 0.0, 0.3, 0)), 1).tolist() == [1]
    assert policy.decide(_idle(often, (1.0, 0.0, 0.5, 0)), 1).tolist() == [0]
    assert policy.decide(_idle((14.0, 4.0, 1.0, 0), (1.0, 0.0, 0.5, 0)), 1).tolist() == [1]


@given(pages=PAGES)
def test_a_page_goes_no_later_for_being_used_less_or_longer_ago(pages: list) -> None:
    """So a page never outlives those before it in its text, which are used whenever it is."""
    accesses, age, contiguity, _ = pages[0]
    twins = [(accesses, age, contiguity, 0), (max(1, accesses - 3), age + 1, 0.5, 1), *pages[1:]]
    for name in POLICIES:
        order = make_policy(name).decide(_idle(*twins), len(twins)).tolist()
        assert order.index(1) < order.index(0)


def test_an_unknown_policy_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'lfu', 'lru', 'score'.*'mru'"):
        make_policy("mru")
