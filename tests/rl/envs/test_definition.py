"""What an environment class must be, and what is said when it is not."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.errors import InvalidInput, NotFound
from headrace.rl.envs import Array, Box, Discrete, Env, make_env
from headrace.rl.envs.definition import describe
from headrace.rl.envs.layout import new_block, state_bytes, views
from headrace.rl.envs.registry import SHIPPED, find_env


class Walk(Env):
    """One step to the left or right."""

    id = "test/Walk-v0"
    observation = Box(-10.0, 10.0, shape=(1,))
    action = Discrete(2)
    max_steps = 10

    class Params(NamedTuple):
        length: float = 1.0
        turns: int = 3
        wrap: bool = False

    class State(NamedTuple):
        x: float
        n: int
        flag: bool
        trail: Annotated[NDArray[np.int16], Array((3, 2), "int16")]

    @staticmethod
    def reset(state: State, rng: Any, params: Params) -> State:
        return Walk.State(0.0, 0, False, state.trail)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        return state, 0.0, False

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = state.x


def test_a_definition_is_looked_through():
    found = describe(Walk)
    assert found.spec.id == "test/Walk-v0"
    assert found.params == (1.0, 3, False)
    assert [(f.name, f.dtype.name, f.shape) for f in found.fields] == [
        ("x", "float64", ()),
        ("n", "int64", ()),
        ("flag", "bool", ()),
        ("trail", "int16", (3, 2)),
    ]
    assert found.reset_takes_state
    assert found.new_state().trail.shape == (3, 2)


def test_parameters_can_be_changed():
    assert describe(Walk, {"length": 2}).params == (2.0, 3, False)
    assert isinstance(describe(Walk, {"length": 2}).params[0], float)
    assert describe(Walk, Walk.Params(turns=4)).params.turns == 4
    assert describe(Walk, {"turns": np.int64(5)}).params.turns == 5


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"size": 1}, "has no size; it has length, turns, wrap"),
        ({"turns": 1.5}, r"Params.turns: expected int .*, got 1.5"),
        ({"turns": True}, r"Params.turns: expected int"),
        ({"length": "long"}, r"Params.length: expected float"),
        ({"wrap": 1}, r"Params.wrap: expected bool"),
        ((1.0, 2, False), "expected Walk.Params or a mapping"),
    ],
)
def test_bad_parameters_are_refused_by_name(params, said):
    with pytest.raises(InvalidInput, match=said):
        describe(Walk, params)


def changed(**attributes: Any) -> type[Env]:
    return type("Walk", (Walk,), attributes)


class Empty(NamedTuple):
    pass


class OddField(NamedTuple):
    x: complex


class OddArray(NamedTuple):
    x: Annotated[NDArray[np.float32], Array((0,), "float32")]


class OddType(NamedTuple):
    x: Annotated[NDArray[np.float32], Array((2,), "text")]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (int, "a class derived from"),
        ("CartPole", "a class derived from"),
        (changed(id=3), "Walk.id: expected str, got 3"),
        (changed(observation=Discrete(3)), "Walk.observation: expected Box"),
        (changed(action=None), "Walk.action: expected Box or Discrete or MultiDiscrete, got None"),
        (changed(max_steps=-1), "Walk.max_steps: expected a whole number"),
        (changed(max_steps=True), "Walk.max_steps: expected a whole number"),
        (changed(State=int), "Walk.State: expected a NamedTuple"),
        (changed(State=Empty), "Walk.State: expected a NamedTuple with at least one field"),
        (changed(State=OddField), r"Walk.State.x: expected float, int, bool or Annotated"),
        (changed(State=OddArray), r"Walk.State.x: expected lengths >= 1"),
        (changed(State=OddType), r"Walk.State.x: "),
        (changed(Params=dict), "Walk.Params: expected a NamedTuple"),
        (changed(step=lambda self: None), "Walk.step: expected a @staticmethod"),
        (changed(step=staticmethod(lambda state, action: None)), r"expected step\(state, action, rng, params\)"),
        (changed(reset=staticmethod(lambda rng, params: None)), r"with array fields .* reset\(state, rng, params\)"),
        (changed(observe=None), "Walk.observe: expected a @staticmethod"),
    ],
)
def test_what_is_no_environment_is_refused(env, said):
    with pytest.raises(InvalidInput, match=said):
        describe(env)


@pytest.mark.parametrize("n", [1, 3, 64, 65])
def test_a_block_holds_every_field_on_a_cache_line(n):
    found = describe(Walk)
    block = new_block(state_bytes(found, n))
    assert block.ctypes.data % 64 == 0
    arrays = views(found, block, n)
    assert list(arrays) == ["_episode", "_steps", "_ended", "x", "n", "flag", "trail"]
    assert arrays["trail"].shape == (n, 3, 2)
    for number, array in enumerate(arrays.values(), 1):
        assert array.ctypes.data % 64 == 0
        array[:] = number % 2 if array.dtype == np.bool_ else number
    for number, array in enumerate(arrays.values(), 1):  # none overlaps another
        assert (array == (number % 2 if array.dtype == np.bool_ else number)).all()
    arrays["x"][n - 1] = 7.5
    state = found.state_at(arrays, n - 1)
    assert (state.x, type(state.x), type(state.n), state.trail.base is not None) == (7.5, float, int, True)


def test_another_block_is_refused():
    found = describe(Walk)
    for wrong in (np.zeros(10, np.uint8), np.zeros(10_000, np.int8), np.zeros((100, 100), np.uint8)):
        with pytest.raises(InvalidInput, match="bytes"):
            views(found, wrong, 5)


def test_environments_are_found_by_name():
    assert find_env("headrace/CartPole-v1").__name__ == "CartPole"
    assert find_env("headrace.rl.envs.pendulum:Pendulum").id == "headrace/Pendulum-v1"
    for name, place in SHIPPED.items():
        assert find_env(place).id == name


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "headrace/CartPole-v9", "headrace.rl.envs.pendulum:Rod", "no_such_module:Env", "math:sqrt", ":"],
)
def test_names_of_nothing_are_not_found(name):
    with pytest.raises(NotFound, match="environment"):
        make_env(name)
