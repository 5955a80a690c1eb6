"""How many prompt tokens go beside streams, from what steps have cost; no clock is read here."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace.llm.scheduler.pace import FEWEST, FIRST_SHARE, GRAIN, Pace


def _cost_s(n_streams: int, n_prompt: int, stream_s: float, token_s: float) -> float:
    return (2e-3 if n_streams else 1e-3) + n_streams * stream_s + n_prompt * token_s


def _settled(slack: float, n_streams: int, stream_s: float, token_s: float) -> Pace:
    """After a while of streams with a prompt beside them every other step."""
    pace = Pace(slack)
    for step in range(200):
        n_prompt = pace.prompt_share(n_streams, 1, 512) if step % 2 else 0
        pace = pace.observe(n_streams, n_prompt, _cost_s(n_streams, n_prompt, stream_s, token_s))
    return pace


@given(
    slack=st.floats(0.1, 3),
    n_streams=st.integers(1, 64),
    stream_s=st.floats(1e-5, 1e-2),
    token_s=st.floats(1e-5, 3e-3),
)
def test_a_prompt_adds_no_more_than_the_slack(slack: float, n_streams: int, stream_s: float, token_s: float) -> None:
    share = _settled(slack, n_streams, stream_s, token_s).prompt_share(n_streams, 1, 512)
    assert FEWEST <= share <= 512
    alone_s = _cost_s(n_streams, 0, stream_s, token_s)
    added_s = _cost_s(n_streams, share, stream_s, token_s) - alone_s
    assert added_s <= slack * alone_s * 1.01 or share == FEWEST
    unused_s = slack * alone_s - added_s
    assert unused_s <= (GRAIN if share >= GRAIN else 1) * token_s * 1.01 or share == 512, "it could have been more"


def test_beside_nothing_a_prompt_has_the_whole_step() -> None:
    assert _settled(0.8, 8, 1e-3, 1e-3).prompt_share(0, 1, 512) == 512
    assert Pace().prompt_share(0, 1, 300) == 300


def test_before_anything_is_measured_it_is_careful() -> None:
    assert Pace().prompt_share(3, 1, 512) == FIRST_SHARE
    assert Pace().prompt_share(3, 1, 20) == 20


def test_many_prompts_beside_few_streams_get_more() -> None:
    pace = _settled(0.8, 4, 1e-3, 1e-4)
    one = pace.prompt_share(4, 1, 512)
    assert pace.prompt_share(4, 4, 512) == one
    assert pace.prompt_share(4, 12, 512) == pytest.approx(3 * one, abs=3 * GRAIN)
    assert pace.prompt_share(4, 1000, 512) == 512


def test_one_slow_step_changes_little() -> None:
    pace = _settled(0.8, 8, 1e-3, 1e-4)
    share = pace.prompt_share(8, 1, 512)
    slow = pace.observe(8, share, 1.0).observe(8, 0, 2e-3 + 8e-3)
    assert slow.prompt_share(8, 1, 512) >= FEWEST
    for _ in range(40):
        slow = slow.observe(8, slow.prompt_share(8, 1, 512), _cost_s(8, slow.prompt_share(8, 1, 512), 1e-3, 1e-4))
    assert slow.prompt_share(8, 1, 512) == pytest.approx(share, abs=GRAIN)
