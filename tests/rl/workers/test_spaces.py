"""Nested spaces in shared memory: what goes in comes out, and what does not fit is told."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.rl.workers.actions import ActionWriter
from headrace.rl.workers.layout import Rows, leaves, reader, writer
from headrace.rl.workers.vector import ProcessVectorEnv

from .conftest import Nested
from .test_vector import same

LEAVES = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 100, tuple(shape), dtype),
        st.lists(st.integers(1, 3), max_size=3),
        st.sampled_from([np.float32, np.float64, np.uint8, np.int16]),
    ),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(spaces.Tuple, st.lists(inner, min_size=1, max_size=3)),
        st.builds(spaces.Dict, st.dictionaries(st.text("abc", min_size=1), inner, min_size=1)),
    ),
    max_leaves=5,
)


@given(SPACES, st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_elements_come_back_from_their_rows(space, seed):
    space.seed(seed)
    rows = Rows(space, 3, np.zeros(Rows.nbytes(space, 3), np.uint8))
    put, get = writer(rows), reader(rows)
    elements = [space.sample() for _ in range(3)]
    for row, element in enumerate(elements):
        assert put(row, element)
    for row, element in enumerate(elements):
        assert same(get(row), element)
        assert space.contains(get(row))
    batched = gymnasium.vector.utils.batch_space(space, 3)
    assert batched.contains(rows.tree)
    other = Rows(space, 3, np.zeros(Rows.nbytes(space, 3), np.uint8))
    ActionWriter(other, str).write(rows.tree)
    assert same(other.tree, rows.tree)


def test_kept_elements_do_not_change():
    rows = Rows(spaces.Box(-1, 1, (2,)), 1, np.zeros(64, np.uint8))
    put, get = writer(rows), reader(rows)
    put(0, np.ones(2, np.float32))
    kept = get(0)
    put(0, np.zeros(2, np.float32))
    assert kept.tolist() == [1, 1]


def test_spaces_without_a_fixed_layout_are_refused():
    with pytest.raises(InvalidInput, match=r"space\['words'\]\[1\].*got Text"):
        leaves(spaces.Dict(words=spaces.Tuple([spaces.Discrete(2), spaces.Text(5)])))


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (spaces.Box(0, 1, (2,)), np.zeros(3, np.float32), r"expected the shape \[2\], got \[3\]"),
        (spaces.Box(0, 1, (2,)), np.float32(0), r"expected the shape \[2\], got \[\]"),  # would broadcast
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32), "expected uint8, got float32"),
        (spaces.Discrete(3), 3, "expected 0 … 2, got 3"),
        (spaces.Discrete(3, start=-1), -2, "expected -1 … 1, got -2"),
        (spaces.Discrete(3), 1.0, "expected a whole number, got 1.0"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, "expected the structure"),
        (spaces.Tuple([spaces.Discrete(2)]), (1, 1), "expected the structure"),
    ],
)
def test_what_does_not_fit_is_told(space, value, told):
    rows = Rows(space, 1, np.zeros(256, np.uint8))
    with pytest.raises(InvalidInput, match=told):
        writer(rows)(0, value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered in dot:RuntimeWarning")
def test_numbers_that_are_none_are_noticed(bad):
    space = spaces.Dict(a=spaces.Box(-np.inf, np.inf, (5,)), b=spaces.Discrete(2))
    put = writer(Rows(space, 1, np.zeros(256, np.uint8)))
    row = np.full(5, 3e38, np.float32)  # large, but finite
    assert put(0, {"a": row, "b": 1})
    row[3] = bad
    assert not put(0, {"a": row, "b": 1})


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_nested_spaces_step_as_gymnasium_steps_them(mode):
    from . import conftest  # noqa: F401  environments travel by value

    theirs = SyncVectorEnv([Nested] * 3, autoreset_mode=mode)
    theirs.action_space.seed(3)
    with ProcessVectorEnv([partial(Nested)] * 3, workers=2, autoreset_mode=mode) as ours:
        assert ours.observation_space == theirs.observation_space
        first = ours.reset(seed=1)[0]
        assert same(first, theirs.reset(seed=1)[0])
        for _ in range(3):
            action = theirs.action_space.sample()
            assert same(ours.step(action), theirs.step(action))
        action = theirs.action_space.sample()
        got, expected = ours.step(action), theirs.step(action)
        assert same(got[1:4], expected[1:4])
        if mode == "SameStep":
            assert same(got[4], expected[4])
        action["gear"][0][1] = 7
        with pytest.raises(InvalidInput, match=r"action\['gear'\]\[0\] of environment 1: expected 0 … 2, got 7"):
            ours.step(action)
