"""NaN from environments, contexts that end, settings that do not fit: said clearly, and nothing is lost."""

from __future__ import annotations

import math
import threading
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, DeadlineExceeded, InvalidInput, StageFailed, Unavailable
from headrace.rl.envs import CompiledEnv, Env, compile
from headrace.rl.envs.batch import BatchEnv
from headrace.rl.envs.random import integers
from headrace.rl.policy import Categorical, Gaussian, MlpSpec, initial
from headrace.rl.rollout import Collector, Trajectory
from headrace.rl.spec import Box, Discrete

ARRAYS = [field.name for field in fields(Trajectory) if field.name not in ("stats", "version", "first_step")]


class Faulty(Env):
    """Rewards of 1 for 30 steps. The first number seen is the kind of an environment: 1 has a reward of NaN in its 7th
    step, 2 an infinite observation."""

    id = "test/Faulty"
    observation = Box(-1.0, 1.0, shape=(2,))
    action = Discrete(3)
    max_steps = 30

    class State(NamedTuple):
        count: int
        kind: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return Faulty.State(0, integers(rng, 3))

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        count = state.count + 1
        return Faulty.State(count, state.kind), math.nan if count == 7 and state.kind == 1 else 1.0, False

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = state.kind
        out[1] = math.inf if state.count == 7 and state.kind == 2 else 0.5


@pytest.fixture(scope="module")
def faulty() -> CompiledEnv:
    return compile(Faulty)


def test_the_first_number_that_is_none_is_named(faulty: CompiledEnv) -> None:
    met = set()
    for seed in range(6):
        collector = Collector(faulty, n_envs=200, n_steps=20, seed=seed)
        flat = initial(collector.spec, 0)
        kinds = BatchEnv(faulty, 200, seed=seed).reset()[:, 0]
        first = int(kinds.nonzero()[0][0])
        met.add(kinds[first])
        out = Trajectory.empty(collector.spec, 200, 20)
        with pytest.raises(StageFailed, match="test/Faulty") as raised:
            collector.collect(flat, out=out)
        wrong = "reward is nan" if kinds[first] == 1 else "observation[1] is inf"
        told = f"environment {first}, step 6 (step 7 of its episode), action [{out.actions[6, first, 0]}]: {wrong}"
        assert told in str(raised.value)
        with pytest.raises(Unavailable, match="reset"):
            collector.collect(flat)
        collector.reset(seed)
        with pytest.raises(StageFailed):
            collector.collect(flat)
    assert met == {1, 2}


@pytest.mark.parametrize("bad_values", ["drop", "clip"])
def test_training_can_go_on_without_them(faulty: CompiledEnv, bad_values: Any) -> None:
    collector = Collector(faulty, n_envs=200, n_steps=60, seed=3, bad_values=bad_values)
    trajectory = collector.collect(initial(collector.spec, 0))
    assert all(np.isfinite(getattr(trajectory, name)).all() for name in ARRAYS)
    assert trajectory.stats.faults > 150
    assert "step 7 of its episode" in collector.fault
    if bad_values == "drop":
        assert set(trajectory.stats.lengths) == {30}
        assert set(trajectory.stats.returns) == {30.0}
        assert trajectory.truncated.sum() == trajectory.stats.faults + trajectory.stats.episodes
    else:
        assert set(trajectory.stats.returns) == {29.0, 30.0}
        assert trajectory.stats.episodes == 400
        assert trajectory.obs.max() == 10.0


def test_a_context_ends_a_collect(cartpole: CompiledEnv) -> None:
    collector = Collector(cartpole, n_envs=512, n_steps=8000)
    flat = initial(collector.spec, 0)
    with pytest.raises(DeadlineExceeded):
        collector.collect(flat, ctx=Context(timeout_s=0.0))
    with pytest.raises(DeadlineExceeded):
        collector.collect(flat, ctx=Context(timeout_s=0.01))
    collector.reset(0)
    ctx = Context()
    timer = threading.Timer(0.02, ctx.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        collector.collect(flat, ctx=ctx)
    timer.join()
    collector.reset(0)
    small = Collector(cartpole, n_envs=64, n_steps=5)
    assert small.collect(flat, ctx=Context()).stats.faults == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"n_envs": 0}, "n_envs"),
        ({"n_steps": 0}, "n_steps"),
        ({"seed": -1}, "seed"),
        ({"threads": 5000}, "threads"),
        ({"shard": 100}, "multiple of 64"),
        ({"gamma": 1.5}, "gamma"),
        ({"obs_limit": 0.0}, "limits"),
        ({"bad_values": "ignore"}, "bad_values"),
        ({"spec": MlpSpec(5)}, "5"),
        ({"spec": MlpSpec(4, head=Categorical((3,)))}, "3"),
        ({"spec": MlpSpec(4, head=Gaussian(1))}, "Gaussian"),
    ],
)
def test_what_does_not_fit_is_refused(cartpole: CompiledEnv, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Collector(cartpole, **{"n_envs": 8, "n_steps": 8, **settings})


def test_parameters_are_looked_at(cartpole: CompiledEnv) -> None:
    collector = Collector(cartpole, n_envs=8, n_steps=8)
    flat = initial(collector.spec, 0)
    flat[100] = np.nan
    with pytest.raises(InvalidInput, match="parameter 100 of the policy is"):
        collector.collect(flat)
    with pytest.raises(InvalidInput, match="parameters"):
        collector.collect(flat[:-1].copy())
    with pytest.raises(InvalidInput, match="does not fit"):
        collector.collect(initial(collector.spec, 0), out=Trajectory.empty(collector.spec, 9, 8))
    collector.collect(initial(collector.spec, 0))
