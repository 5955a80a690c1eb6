"""What happens where an episode ends: who gets the last observation, who the first, when, and how steps are counted.

These are the mistakes that training suffers from in silence: the last observation lost, a truncation taken for an end,
a step lost or counted twice at the seam of two episodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.rl.envs import Box, Discrete, Env, compile
from headrace.rl.envs.batch import Autoreset, BatchEnv

LENGTH = 5


class Counter(Env):
    """Observes (episode's own number, steps so far); action 1 ends the episode; truncated after 5 steps."""

    id = "test/Counter-v0"
    observation = Box(0.0, np.inf, shape=(2,))
    action = Discrete(2)
    max_steps = LENGTH

    class State(NamedTuple):
        episode: int
        steps: int

    @staticmethod
    def reset(state: State, rng: Any, params: Any) -> State:
        return Counter.State(state.episode + 1, 0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        return Counter.State(state.episode, state.steps + 1), 10.0 * state.episode + state.steps + 1, action == 1

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = state.episode
        out[1] = state.steps


@pytest.fixture(scope="module")
def counter():
    return compile(Counter)


def batch_of(counter, mode: Autoreset, n: int = 2) -> BatchEnv:
    batch = BatchEnv(counter, n, autoreset=mode)
    assert batch.reset().tolist() == [[1, 0]] * n
    return batch


def test_same_step_gives_the_last_observation_and_the_next_first_one(counter):
    batch = batch_of(counter, Autoreset.SAME_STEP)
    for step in range(1, LENGTH):
        obs, _, terminated, truncated = batch.step([0, 0])
        assert obs.tolist() == [[1, step]] * 2
        assert not (terminated | truncated).any()
    obs, reward, terminated, truncated = batch.step([0, 0])
    assert truncated.all()
    assert not terminated.any()
    assert reward.tolist() == [15, 15]
    assert batch.final_obs.tolist() == [[1, LENGTH]] * 2
    assert obs.tolist() == [[2, 0]] * 2
    obs, reward, _, truncated = batch.step([0, 0])
    assert (obs.tolist(), reward.tolist(), truncated.any()) == ([[2, 1]] * 2, [21, 21], False)


def test_same_step_leaves_the_final_observations_of_others_alone(counter):
    batch = batch_of(counter, Autoreset.SAME_STEP)
    batch.final_obs[:] = -7
    batch.step([1, 0])
    assert batch.final_obs.tolist() == [[1, 1], [-7, -7]]


def test_next_step_resets_one_step_later_and_ignores_that_action(counter):
    batch = batch_of(counter, Autoreset.NEXT_STEP)
    obs, reward, terminated, _ = batch.step([1, 0])
    assert obs.tolist() == [[1, 1], [1, 1]]
    assert (reward.tolist(), terminated.tolist()) == ([11, 11], [True, False])
    obs, reward, terminated, truncated = batch.step([1, 0])
    assert obs.tolist() == [[2, 0], [1, 2]]
    assert reward.tolist() == [0, 12]
    assert not (terminated | truncated).any()
    obs, reward, _, _ = batch.step([0, 0])
    assert (obs.tolist(), reward.tolist()) == ([[2, 1], [1, 3]], [21, 13])


def test_disabled_holds_what_has_ended_until_it_is_reset(counter):
    batch = batch_of(counter, Autoreset.DISABLED)
    batch.step([1, 0])
    for step in (2, 3):
        obs, reward, terminated, truncated = batch.step([0, 0])
        assert obs.tolist() == [[1, 1], [1, step]]
        assert reward.tolist() == [0, 10 + step]
        assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
    assert batch.restart([True, False]).tolist() == [[2, 0], [1, 3]]
    assert batch.step([0, 0]).obs.tolist() == [[2, 1], [1, 4]]


@pytest.mark.parametrize("mode", list(Autoreset))
def test_an_end_at_the_last_step_is_both(counter, mode):
    batch = batch_of(counter, mode)
    for _ in range(LENGTH - 1):
        batch.step([0, 0])
    step = batch.step([1, 0])
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [True, True]


@pytest.mark.parametrize("mode", [Autoreset.SAME_STEP, Autoreset.NEXT_STEP])
@pytest.mark.parametrize("n", [1, 64, 500])
def test_every_episode_has_all_its_steps(counter, mode, n):
    """Over many episodes of every length: rewards come in order, and no episode begins before its turn."""
    batch, rng = batch_of(counter, mode, n), np.random.default_rng(n)
    expected_episode, expected_step = np.ones(n, int), np.zeros(n, int)
    for _ in range(60):
        running = expected_step >= 0
        expected_step += 1  # a -1 becomes 0: the reset of NEXT_STEP
        obs, reward, terminated, truncated = batch.step(actions := (rng.random(n) < 0.2).astype(np.int32))
        np.testing.assert_array_equal(reward, np.where(running, 10 * expected_episode + expected_step, 0))
        ended = running & ((actions == 1) | (expected_step == LENGTH))
        np.testing.assert_array_equal(terminated, running & (actions == 1))
        np.testing.assert_array_equal(truncated, running & (expected_step == LENGTH))
        if mode is Autoreset.SAME_STEP:
            last = np.stack([expected_episode, expected_step], 1)
            np.testing.assert_array_equal(batch.final_obs[ended], last[ended])
            expected_step[ended] = 0
        expected_episode += ended
        if mode is Autoreset.NEXT_STEP:
            seen = np.stack([expected_episode - ended, expected_step], 1)
            np.testing.assert_array_equal(obs, seen)
            expected_step[ended] = -1
        else:
            np.testing.assert_array_equal(obs, np.stack([expected_episode, expected_step], 1))
    assert batch.fields()["_episode"].min() > 5 * (n > 1)


def test_changing_the_mode_mid_way_loses_no_episode(counter):
    """Environments that wait for a reset in one mode are reset by the next step of another."""
    batch = batch_of(counter, Autoreset.DISABLED)
    batch.step([1, 0])
    batch.autoreset = Autoreset.SAME_STEP
    obs, reward, terminated, _ = batch.step([0, 0])
    assert (obs.tolist(), reward.tolist(), terminated.any()) == ([[2, 0], [1, 2]], [0, 12], False)


def test_without_a_limit_nothing_is_truncated():
    batch = BatchEnv(compile(Counter, max_steps=0), 1)
    batch.reset()
    assert not any(batch.step([0]).truncated[0] for _ in range(50))
    assert batch.obs.tolist() == [[1, 50]]
