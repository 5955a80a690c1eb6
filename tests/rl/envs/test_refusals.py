"""What cannot be compiled, and where and why that is said to be."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.rl.envs import Box, Discrete, Env, compile
from headrace.rl.envs.cache import ObjectCache

TABLE = {0: 1.0}


class Base(Env):
    """Nothing is wrong with it; the tests change its step."""

    id = "test/Refused-v0"
    observation = Box(-np.inf, np.inf, shape=(1,))
    action = Discrete(3)
    max_steps = 10

    class State(NamedTuple):
        x: float
        k: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return Base.State(0.0, 0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        return Base.State(state.x, state.k + 1), 1.0, False

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = state.x


def with_step(step: Any) -> type[Env]:
    return type("Changed", (Base,), {"step": staticmethod(step)})


def makes_a_list(state: Any, action: int, rng: Any, params: Any) -> Any:
    things = [state.x, 1.0]
    return Base.State(sum(things), state.k), 1.0, False  # here


def makes_an_array(state: Any, action: int, rng: Any, params: Any) -> Any:
    room = np.zeros(3)  # here
    return Base.State(room[0], state.k), 1.0, False


def looks_into_a_dict(state: Any, action: int, rng: Any, params: Any) -> Any:
    return Base.State(TABLE[0], state.k), 1.0, False  # here


def replaces(state: Any, action: int, rng: Any, params: Any) -> Any:
    return state._replace(k=3), 1.0, False  # here


def imports(state: Any, action: int, rng: Any, params: Any) -> Any:
    import random  # here

    return Base.State(random.random(), state.k), 1.0, False


def writes_text(state: Any, action: int, rng: Any, params: Any) -> Any:
    text = f"{state.x:.2f}"  # here
    return Base.State(state.x, len(text)), 1.0, False


def asserts(state: Any, action: int, rng: Any, params: Any) -> Any:
    assert state.x < 1e9  # here
    return state, 1.0, False


def asks_a_bad_helper(state: Any, action: int, rng: Any, params: Any) -> Any:
    return Base.State(shout(state.x) if state.k > 10**9 else 0.0, state.k), 1.0, False


def shout(x: Any) -> Any:
    return x.upper()  # here


def divides_by_nothing(state: Any, action: int, rng: Any, params: Any) -> Any:
    return Base.State(1 / state.k, state.k), 1.0, False  # here


def indexes_a_tuple(state: Any, action: int, rng: Any, params: Any) -> Any:  # here
    return Base.State((1.0, 2.0, 3.0)[action], state.k), 1.0, False


def returns_too_little(state: Any, action: int, rng: Any, params: Any) -> Any:  # here
    return state, 1.0


def returns_no_reward(state: Any, action: int, rng: Any, params: Any) -> Any:  # here
    return state, None, False


def returns_another_state(state: Any, action: int, rng: Any, params: Any) -> Any:  # here
    return (state.x, state.k), 1.0, False


def puts_a_float_where_an_int_belongs(state: Any, action: int, rng: Any, params: Any) -> Any:  # here
    return Base.State(state.x, 0.5), 1.0, False


@pytest.mark.parametrize(
    ("step", "at", "said"),
    [
        (makes_a_list, makes_a_list, "lists, sets and dicts cannot be made"),
        (makes_an_array, makes_an_array, "memory cannot be allocated in the loop: declare an Array field"),
        (looks_into_a_dict, looks_into_a_dict, "TABLE is a dict; only numbers, tuples, NumPy arrays"),
        (replaces, replaces, "_replace.*; make the State anew"),
        (imports, imports, "import at the top of the module"),
        (writes_text, writes_text, "texts cannot be used"),
        (asserts, asserts, "it raises or asserts"),
        (asks_a_bad_helper, shout, "Unknown attribute 'upper' of type float64"),
        (divides_by_nothing, divides_by_nothing, "failed when it was tried: ZeroDivisionError"),
        (indexes_a_tuple, indexes_a_tuple, "it may raise: by an index into a tuple"),
        (returns_too_little, returns_too_little, r"expected \(State, reward, terminated\)"),
        (returns_no_reward, returns_no_reward, r"expected \(State, reward, terminated\)"),
        (returns_another_state, returns_another_state, "expected a Base.State"),
        (puts_a_float_where_an_int_belongs, puts_a_float_where_an_int_belongs, "k: expected int64, got 0.5"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_compiled_is_said_of_its_line(step, at, said, tmp_path):
    source, first = inspect.getsourcelines(at)
    line = first + next(i for i, text in enumerate(source) if "# here" in text)
    with pytest.raises(InvalidInput, match=said) as caught:
        compile(with_step(step), cache=ObjectCache(tmp_path))
    assert str(caught.value).startswith(f"{__file__}:{line}: ")
    assert list(tmp_path.iterdir()) == []


def test_an_observation_left_unwritten_is_refused():
    def observe(state: Any, params: Any, out: Any) -> None:
        pass

    with pytest.raises(InvalidInput, match=r"left out\[0\] unwritten"):
        compile(type("Changed", (Base,), {"observe": staticmethod(observe)}))
