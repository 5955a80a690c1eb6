"""Spaces and specs: equal when they mean the same, refused when they mean nothing, the same as Gymnasium's."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from headrace.errors import InvalidInput
from headrace.rl.spec import Box, Discrete, EnvSpec, MultiDiscrete, from_gymnasium, to_gymnasium


def test_box_broadcasts_its_bounds():
    box = Box(-1.0, (1.0, 2.0, np.inf), shape=(3,))
    assert box.size == 3
    assert box.low.tolist() == [-1.0, -1.0, -1.0]
    assert not box.bounded
    assert Box(-2.0, 2.0, shape=(1,)).bounded


def test_boxes_compare_by_value():
    assert Box(-1, 1, shape=(2,)) == Box((-1, -1), (1, 1))
    assert hash(Box(-1, 1, shape=(2,))) == hash(Box((-1, -1), (1, 1)))
    assert Box(-1, 1, shape=(2,)) != Box(-1, 1, shape=(1, 2))
    assert Box(-1, 1, shape=(2,)) != Box(-1, 2, shape=(2,))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Box(1.0, -1.0, shape=(2,)), "low must not be above high"),
        (lambda: Box(np.nan, 1.0, shape=(2,)), "NaN"),
        (lambda: Box((0, 0, 0), 1.0, shape=(2,)), "do not fit the shape"),
        (lambda: Box(0.0, 1.0, shape=(0,)), "at least 1"),
        (lambda: Discrete(0), "at least 1"),
        (lambda: MultiDiscrete(()), "at least 1"),
        (lambda: MultiDiscrete((2, 0)), "at least 1"),
    ],
)
def test_spaces_of_nothing_are_refused(make, said):
    with pytest.raises(InvalidInput, match=said):
        make()


@pytest.mark.parametrize(
    "space",
    [Box((-1.0, -np.inf), (1.0, np.inf)), Box(0, 255, shape=(2, 3)), Discrete(5), MultiDiscrete((3, 2))],
)
def test_spaces_go_to_gymnasium_and_back(space):
    twin = to_gymnasium(space)
    assert isinstance(twin, gymnasium.Space)
    assert twin.dtype == space.dtype or space.dtype.kind == "i"
    assert from_gymnasium(twin) == space


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=1), spaces.MultiBinary(3), spaces.Dict(), spaces.Text(3)])
def test_other_gymnasium_spaces_are_refused(space):
    with pytest.raises(InvalidInput):
        from_gymnasium(space)


def test_a_spec_knows_its_sizes():
    spec = EnvSpec("t/T-v0", Box(0, 1, shape=(2, 3)), MultiDiscrete((3, 2)))
    assert (spec.obs_size, spec.action_size, spec.actions_shape(7)) == (6, 2, (7, 2))
    assert EnvSpec("t/T-v0", Box(0, 1, shape=(1,)), Discrete(3)).actions_shape(7) == (7,)
