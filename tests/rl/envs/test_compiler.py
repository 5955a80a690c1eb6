"""What can be compiled, and when machine code is found again."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.envs import Array, Box, Discrete, Env, compile
from headrace.rl.envs.batch import BatchEnv
from headrace.rl.envs.cache import ObjectCache
from headrace.rl.envs.definition import describe
from headrace.rl.envs.plain import PlainEnv
from headrace.rl.envs.random import uniform
from headrace.rl.envs.walk import walk

SCALE = 2.0
WEIGHTS = np.array([1.0, 2.0, 4.0])


class Base(Env):
    """Does nothing much; the tests change its step."""

    id = "test/Base-v0"
    observation = Box(-np.inf, np.inf, shape=(1,))
    action = Discrete(3)
    max_steps = 10

    class State(NamedTuple):
        x: float
        k: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return Base.State(1, 0)  # a whole number where a float belongs

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        return Base.State(state.x, state.k + 1), 1.0, False

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = state.x


def with_step(step: Any) -> type[Env]:
    return type("Changed", (Base,), {"step": staticmethod(step)})


# -- what can be compiled ----------------------------------------------------------------------------------------------


def helper(x: float, factor: float = SCALE) -> float:
    return math.sqrt(x * factor)


def make_step(offset: float) -> Any:
    def uses_helpers_globals_and_numpy(state: Any, action: int, rng: Any, params: Any) -> Any:
        x = helper(state.x) + helper(state.x, factor=3.0) + WEIGHTS[action] + math.pi + offset
        y = np.clip(x, -1.0, 0.5) + np.sqrt(2.0) + np.sin(x) + np.cos(x) + np.hypot(3.0, 4.0)
        return Base.State(y, state.k), np.float64(SCALE), np.bool_(False)

    return uses_helpers_globals_and_numpy


def uses_a_lambda_and_a_loop(state: Any, action: int, rng: Any, params: Any) -> Any:
    double = lambda z: 2 * z  # noqa: E731
    total = 0.0
    for i in range(state.k + 1):
        total += double(i)
    while total > 3:
        total -= 1.5
    return Base.State(total, state.k + 1), 1, False


def returns_unlike_states(state: Any, action: int, rng: Any, params: Any) -> Any:
    if action == 0:
        return Base.State(0, state.k), 1.0, False
    if action == 1:
        return Base.State(x=0.5, k=state.k), 2, True
    return state, 0.0, False


def draws(state: Any, action: int, rng: Any, params: Any) -> Any:
    x = 0.0
    for _ in range(action):
        x += uniform(rng, 0.0, 1.0)
    return Base.State(x, state.k), uniform(rng, 0.0, 1.0), False


@pytest.mark.parametrize(
    "step",
    [make_step(0.25), uses_a_lambda_and_a_loop, returns_unlike_states, draws],
    ids=lambda step: step.__qualname__,
)
def test_plain_python_of_many_kinds_compiles(step):
    env = compile(with_step(step))
    batch, twins = BatchEnv(env, 3, seed=4), [PlainEnv(env.definition, 4, i) for i in range(3)]
    batch.reset()
    for twin in twins:
        twin.reset()
    for t in range(25):
        action = [t % 3, (t + 1) % 3, (t + 2) % 3]
        obs, reward, terminated, truncated = batch.step(action)
        for i, twin in enumerate(twins):
            seen, earned, over, cut = twin.step(action[i])
            assert (reward[i], terminated[i], truncated[i]) == (np.float32(earned), over, cut)
            if over or cut:
                seen = twin.reset()
            assert obs[i, 0] == pytest.approx(float(seen[0]), rel=1e-6)


class Swarm(Env):
    """Array fields and more numbers in an action than are passed by value; names that the loops use themselves."""

    id = "test/Swarm-v0"
    observation = Box(-np.inf, np.inf, shape=(40,))
    action = Box(-1.0, 1.0, shape=(20,))
    max_steps = 7

    class State(NamedTuple):
        steps: Annotated[NDArray[np.float64], Array((20, 2), "float64")]
        reward: Annotated[NDArray[np.bool_], Array((20,), "bool")]
        episode: int
        obs: bool

    @staticmethod
    def reset(state: State, rng: Any, params: Any) -> State:
        for i in range(20):
            state.steps[i, 0] = uniform(rng, -1.0, 1.0)
            state.steps[i, 1] = 0.0
            state.reward[i] = False
        return Swarm.State(state.steps, state.reward, state.episode + 1, not state.obs)

    @staticmethod
    def step(state: State, action: Any, rng: Any, params: Any) -> tuple[State, float, bool]:
        total = 0.0
        for i in range(20):
            state.steps[i, 1] += action[i]
            state.steps[i, 0] += 0.1 * state.steps[i, 1]
            state.reward[i] = not state.reward[i] and action[i] > 0
            total += 1.0 if state.reward[i] else 0.0
        return Swarm.State(state.steps, state.reward, state.episode, state.obs), total, state.steps[3, 0] > 1.2

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        for i in range(20):
            out[2 * i] = state.steps[i, 0]
            out[2 * i + 1] = state.steps[i, 1] if state.obs else -1.0


def test_array_fields_are_changed_in_place():
    env = compile(Swarm)
    n = 70
    batch, twins = BatchEnv(env, n, seed=4, threads=2), [PlainEnv(env.definition, 4, i) for i in range(n)]
    np.testing.assert_array_equal(batch.reset(), [twin.reset() for twin in twins])
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, (n, 20)).astype(np.float32)
        obs, reward, terminated, truncated = batch.step(action)
        for i, twin in enumerate(twins):
            seen, earned, over, cut = twin.step(action[i])
            assert (reward[i], terminated[i], truncated[i]) == (earned, over, cut)
            if over or cut:
                np.testing.assert_allclose(batch.final_obs[i], seen, rtol=1e-6)
                seen = twin.reset()
            np.testing.assert_allclose(obs[i], seen, rtol=1e-6)
    assert batch.fields()["reward"].shape == (n, 20)
    assert batch.fields()["episode"].min() > 2


def test_arrays_must_stay_where_they_are():
    def step(state: Any, action: Any, rng: Any, params: Any) -> Any:
        return Swarm.State(state.steps.copy(), state.reward, state.episode, state.obs), 0.0, False

    with pytest.raises(InvalidInput, match="must return the array it was given as steps"):
        compile(type("Changed", (Swarm,), {"step": staticmethod(step)}))


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_machine_code_is_found_again_unless_damaged(tmp_path, monkeypatch):
    cache = ObjectCache(tmp_path)
    first = compile(Base, cache=cache)
    whole = cache.path(first.digest).read_bytes()
    for damaged in (whole[:-1], b"", whole[:40] + b"x" + whole[41:], whole + b"0", b"x" + whole[1:]):
        cache.path(first.digest).write_bytes(damaged)
        assert cache.find(first.digest) is None
    compile(Base, cache=cache)  # made anew
    with monkeypatch.context() as patch:
        patch.setattr("headrace.rl.envs.compiler.rehearse", lambda _: pytest.fail("compiled again"))
        second = compile(Base, cache=cache)
    assert second.digest == first.digest
    a, b = BatchEnv(first, 4), BatchEnv(second, 4)
    np.testing.assert_array_equal(a.reset(), b.reset())


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    BatchEnv(compile(Base, cache=ObjectCache(blocked / "below")), 2).reset()


def digest(env: type[Env], params: Any = None, max_steps: int | None = None) -> str:
    return walk(describe(env, params, max_steps)).digest


def test_the_digest_sees_every_change(monkeypatch):
    seen = [digest(Base), digest(Base, max_steps=11)]
    seen += [digest(with_step(step)) for step in (returns_unlike_states, draws)]
    seen += [digest(with_step(make_step(offset))) for offset in (0.25, 0.5)]
    seen += [digest(type("Changed", (Base,), {"action": Discrete(4)})), digest(Swarm)]
    monkeypatch.setattr(f"{__name__}.SCALE", 3.0)  # reached through a global
    seen.append(digest(with_step(make_step(0.25))))
    monkeypatch.setattr(f"{__name__}.WEIGHTS", WEIGHTS + 1)
    seen.append(digest(with_step(make_step(0.25))))
    monkeypatch.setattr(f"{__name__}.helper", lambda x, factor=1.0: x - factor)
    seen.append(digest(with_step(make_step(0.25))))
    assert len(set(seen)) == len(seen)


def test_the_digest_sees_nothing_else():
    assert digest(with_step(make_step(0.25))) == digest(with_step(make_step(0.25)))
    assert digest(with_step(draws)) == digest(with_step(draws))


def test_numbers_that_are_none_are_seen():
    def step(state: Any, action: int, rng: Any, params: Any) -> Any:
        return state, math.inf if action == 2 else state.x, False

    batch = BatchEnv(compile(with_step(step)), 3)
    batch.reset()
    batch.step([0, 1, 0])
    with pytest.raises(InvalidInput, match=r"test/Base-v0: environment 1 gave the reward inf after the action 2"):
        batch.step([0, 2, 2])
    batch.fields()["x"][2] = np.nan
    with pytest.raises(InvalidInput, match="environment 2 gave the reward nan after the action 1"):
        batch.step([0, 0, 1])
    unchecked = BatchEnv(batch.env, 3, check=False)
    unchecked.reset()
    assert np.isinf(unchecked.step([0, 2, 0]).reward[1])
