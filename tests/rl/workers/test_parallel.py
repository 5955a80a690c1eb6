"""PettingZoo parallel environments: a row for each agent, whether it acts or has left."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from headrace.errors import InvalidInput, StageFailed
from headrace.rl.workers.vector import ParallelVectorEnv

from .conftest import Tag


def test_agents_are_rows_that_leave_and_come_back():
    with ParallelVectorEnv([Tag] * 2, workers=2) as env:
        assert (env.num_envs, env.agents) == (6, ("a", "b", "c"))
        assert env.action_space.shape == (6,)
        obs, infos = env.reset(seed=0)
        assert obs[:, 0].tolist() == [0, 1, 2] * 2
        assert infos["alive"].all()
        one, two = [0, 1, 2, 3, 4, 0], [1, 1, 1, 1, 1, 1]
        assert env.step(one)[1].tolist() == one
        obs, rewards, terminated, _, infos = env.step(two)
        assert rewards.tolist() == two
        assert terminated.tolist() == [True, False, False] * 2
        assert infos["alive"].tolist() == [False, True, True] * 2
        assert infos["left"].tolist() == [2, 0, 0] * 2
        assert infos["_left"].tolist() == [True, False, False] * 2
        obs, rewards, terminated, _, infos = env.step(two)
        assert rewards.tolist() == [0, 1, 1] * 2
        assert terminated.tolist() == [False, True, False] * 2
        assert obs[0].tolist() == [0, 1, 2]  # the last one stays
        terminated, infos = env.step(two)[2::2]
        assert terminated.tolist() == [False, False, True] * 2
        assert not infos["alive"].any()
        obs, rewards, terminated, _, infos = env.step(two)  # the step that resets
        assert obs[:, 1].tolist() == [2] * 6
        assert rewards.tolist() == [0] * 6
        assert infos["alive"].all()
        assert not terminated.any()


def test_the_same_step_can_begin_the_next_episode():
    with ParallelVectorEnv([partial(Tag, lasting=1, limit=2)], workers=1, autoreset_mode="SameStep") as env:
        env.reset()
        obs, _, terminated, _, infos = env.step([0, 0, 0])
        assert terminated.tolist() == [True, False, False]
        assert infos["final_obs"][0].tolist() == [0, 1, 1]
        assert infos["final_obs"][1] is None
        obs, _, terminated, truncated, infos = env.step([0, 0, 0])
        assert terminated.tolist() == [False, True, False]
        assert truncated.tolist() == [False, False, True]
        assert obs[:, 1:].tolist() == [[2, 0]] * 3
        assert [None if one is None else one.tolist() for one in infos["final_obs"]] == [None, [1, 1, 2], [2, 1, 2]]
        assert infos["final_info"]["left"].tolist() == [0, 2, 0]
        assert infos["alive"].all()
        assert env.pool.board.lengths.tolist() == [1, 2, 2]


def test_a_fault_truncates_the_agents_that_act():
    with ParallelVectorEnv([partial(Tag, wrong="raise"), Tag], workers=1) as env:
        env.reset()
        env.step([1] * 6)
        _, rewards, terminated, truncated, infos = env.step([1] * 6)
        assert truncated.tolist() == [True] * 3 + [False] * 3
        assert terminated.tolist() == [False] * 3 + [True, False, False]
        assert rewards.tolist() == [0] * 3 + [1] * 3
        assert "environment 0, step 2, action [1, 1, 1]: raised RuntimeError: caught" in infos["fault"][0]
        obs, *_, infos = env.step([1] * 6)
        assert obs[0].tolist() == [0, 1, 0]  # made anew
        assert infos["alive"].tolist() == [True] * 3 + [False, False, True]


def test_whole_environments_are_sent_and_received():
    with ParallelVectorEnv([Tag] * 3, workers=3) as env:
        env.async_reset()
        assert len(env.recv(3).obs) == 9
        env.send([4, 3, 2, 1, 0, 0], [2, 0])
        ready = env.recv(2)
        rewards = dict(zip(ready.ids.tolist(), ready.rewards.reshape(2, 3).tolist(), strict=True))
        assert rewards == {2: [4, 3, 2], 0: [1, 0, 0]}
        with pytest.raises(InvalidInput, match="agent 'b' of environment 1: expected 0 … 4, got 5"):
            env.send([0, 5, 0], [1])


def test_agents_of_different_spaces_are_refused():
    with pytest.raises(StageFailed, match=r"agents must share one observation space.*'b'"):
        ParallelVectorEnv([partial(Tag, different=True)], workers=1)
    with pytest.raises(StageFailed, match="possible_agents"):
        ParallelVectorEnv([partial(np.zeros, 3)], workers=1)
