"""What is remembered is what happened, whoever steps the environments: chains of steps end where their episodes do."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
import pytest

from headrace.errors import StageFailed
from headrace.rl.algorithms.experience import Source
from headrace.rl.algorithms.off_policy import OffPolicy
from headrace.rl.algorithms.worker_source import WorkerSource
from headrace.rl.envs import Box, Discrete, Env, compile
from headrace.rl.envs.random import integers
from headrace.rl.workers.vector import ProcessVectorEnv

from .conftest import config, rows_of, run_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Line(Env):
    """Sees a number drawn at the beginning of its episode, and the step; 1, 2, 3, … for the steps."""

    id = "test/Line-v0"
    observation = Box(-1e6, 1e6, shape=(2,))
    action = Discrete(2)
    max_steps = 5

    class Params(NamedTuple):
        terminates: bool = False
        breaks: int = 0  # the number whose episode gives NaN at step 2

    class State(NamedTuple):
        number: int
        time: int

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return Line.State(1 + integers(rng, 1000), 0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        time = state.time + 1
        reward = math.nan if state.number % 7 == params.breaks - 1 and time == 2 else 1.0 * time
        return Line.State(state.number, time), reward, params.terminates and time == 5

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = state.number
        out[1] = state.time


class GymLine(gymnasium.Env):
    """The same for worker processes; `fails` at step 3 of some episodes."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, terminates: bool = False, fails: bool = False) -> None:
        self.terminates, self.fails, self.time, self.number = terminates, fails, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.number, self.time = int(self.np_random.integers(1, 1000)), 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.fails and self.time == 3 and self.number % 16 == 0:
            raise RuntimeError("out of order")
        over = self.time == 5
        seen = np.array([self.number, self.time], np.float32)
        return seen, float(self.time), over and self.terminates, over and not self.terminates, {}


def processes(**kwargs: Any) -> Callable[[int], Source]:
    def make(n: int) -> Source:
        return WorkerSource(
            ProcessVectorEnv.make(GymLine, n, kwargs=kwargs, workers=2, autoreset_mode="SameStep", infos=False)
        )

    return make


def check_line(rows: dict[str, Any], n: int, gamma: float, terminates: bool) -> None:
    """Every chain stays within its episode, and bootstraps where that was cut, on the last observation it had."""
    obs, next_obs = rows["obs"], rows["next_obs"]
    begin, end = obs[:, 1], next_obs[:, 1]
    assert len(obs) > 100
    np.testing.assert_array_equal(obs[:, 0], next_obs[:, 0])
    np.testing.assert_array_equal(end, np.minimum(begin + n, 5))
    assert set(end) == {min(t + n, 5) for t in range(5)}
    steps = end - begin
    right = np.where((end == 5) & terminates, 0.0, gamma**steps)
    np.testing.assert_allclose(rows["discount"], right, rtol=1e-6)
    sums = [sum(gamma**i * (t + 1 + i) for i in range(int(k))) for t, k in zip(begin, steps, strict=True)]
    np.testing.assert_allclose(rows["reward"], sums, rtol=1e-6)


@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_truncated_episode_bootstraps_on_its_own_last_observation(n: int, terminates: bool) -> None:
    run = run_of(compile(Line, {"terminates": terminates}), config("dqn", n_step=n, gamma=0.9))
    stats = [run.update(0.0).stats for _ in range(4)]
    check_line(rows_of(run), n, 0.9, terminates)
    returns = np.concatenate([one.returns for one in stats])
    assert len(returns) == 4 * (64 // 5)
    assert set(returns) == {15.0}
    assert {int(length) for one in stats for length in one.lengths} == {5}
    run.close()


@pytest.mark.parametrize("terminates", [False, True])
def test_workers_give_the_same_kind_of_steps(terminates: bool) -> None:
    run = OffPolicy(config("dqn", n_step=2, gamma=0.9), processes(terminates=terminates))
    try:
        stats = [run.update(0.0).stats for _ in range(4)]
        check_line(rows_of(run), 2, 0.9, terminates)
        assert {value for one in stats for value in one.returns} == {15.0}
        assert run.evaluate(6, seed=1).returns.tolist() == [15.0] * 6
    finally:
        run.close()


def test_nothing_is_learnt_from_what_a_fault_cut() -> None:
    run = OffPolicy(config("dqn", n_step=2, gamma=0.9), processes(fails=True))
    try:
        stats = [run.update(0.0).stats for _ in range(12)]
        rows = rows_of(run)
        np.testing.assert_array_equal(rows["obs"][:, 0], rows["next_obs"][:, 0])
        broken = rows["obs"][:, 0] % 16 == 0
        assert broken.any()
        assert rows["next_obs"][broken, 1].max() == 2
        assert {value for one in stats for value in one.returns} == {15.0}
    finally:
        run.close()


@pytest.mark.parametrize("bad_values", ["drop", "clip"])
def test_bad_values_are_dropped_or_clipped(bad_values: str) -> None:
    env = compile(Line, {"breaks": 3})
    run = run_of(env, config("dqn", {"bad_values": bad_values, "n_steps": 64}, n_step=2, gamma=0.9))
    stats = [run.update(0.0).stats for _ in range(3)]
    rows = rows_of(run)
    assert sum(one.faults for one in stats) > 3
    assert all(np.isfinite(array).all() for array in rows.values())
    np.testing.assert_array_equal(rows["obs"][:, 0], rows["next_obs"][:, 0])
    broken = rows["obs"][:, 0] % 7 == 2
    assert rows["next_obs"][broken, 1].max(initial=0) == (0 if bad_values == "drop" else 5)
    assert {value for one in stats for value in one.returns} == ({15.0} if bad_values == "drop" else {13.0, 15.0})
    run.close()


def test_bad_values_stop_with_their_place() -> None:
    run = run_of(compile(Line, {"breaks": 3}), config("dqn", {"n_steps": 640}))
    with pytest.raises(
        StageFailed, match=r"test/Line-v0: environment \d at step 2 gave the reward nan after the action"
    ):
        run.update(0.0)
    run.close()
