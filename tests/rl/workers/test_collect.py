"""Trajectories from worker processes: every number where a learner looks for it, whoever was ready first."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.context import Context
from headrace.errors import Cancelled, InvalidInput
from headrace.rl.learners.ppo import NativePpo, PpoConfig
from headrace.rl.policy import Decision, Weights, initial
from headrace.rl.workers.collect import WorkerCollector
from headrace.rl.workers.flatten import flat_rows, flat_size
from headrace.rl.workers.layout import Rows, writer
from headrace.rl.workers.vector import ParallelVectorEnv, ProcessVectorEnv

from .conftest import Counter, Tag


class Ones:
    """Acts with 1, values an observation by the sum of its numbers, and remembers what it was told."""

    def __init__(self):
        self.told = []

    def act(self, obs, rows, steps, begins):
        self.told += zip(rows.tolist(), steps.tolist(), begins.tolist(), strict=True)
        return Decision(np.ones((len(obs), 1), np.int32), np.full(len(obs), -0.5, np.float32), self.value(obs, rows))

    def value(self, obs, rows):
        return obs.sum(1)


def counters(n, **options):
    return ProcessVectorEnv([partial(Counter, i, **options) for i in range(n)], workers=2, autoreset_mode="SameStep")


@pytest.mark.parametrize("min_ready", [3, 1])
def test_every_number_has_its_place(min_ready):
    with counters(3, length=3, truncates=True) as env:
        actor = Ones()
        collector = WorkerCollector(env, n_steps=4, normalise_obs=False, min_ready=min_ready)
        first = collector.collect(actor)
        numbers = np.arange(3)
        assert first.obs[:, :, 0].tolist() == [[0, 1, 2]] * 4
        assert first.obs[:, 0, 1].tolist() == [1, 1, 1, 2]
        assert first.obs[:, 1, 2].tolist() == [0, 1, 2, 0]
        assert first.actions.tolist() == [[[1]] * 3] * 4
        assert (first.log_probs == -0.5).all()
        assert first.values.tolist() == first.obs.sum(2).tolist()
        assert first.rewards.tolist() == [[1] * 3] * 4
        assert first.truncated.tolist() == [[0] * 3, [0] * 3, [1] * 3, [0] * 3]
        assert not first.terminated.any()
        assert first.final_values[2].tolist() == (numbers + 1 + 3).tolist()
        assert first.final_values[[0, 1, 3]].tolist() == [[0] * 3] * 3
        assert first.last_values.tolist() == (numbers + 2 + 1).tolist()
        assert (first.stats.episodes, first.stats.mean_return, first.stats.mean_length) == (3, 3.0, 3.0)
        second = collector.collect(actor)
        assert second.obs[:, 0, 2].tolist() == [1, 2, 0, 1]
        assert second.first_step == 4
        begins = {(row, step) for row, step, begin in actor.told if begin}
        assert begins == {(row, step) for row in range(3) for step in (0, 3, 6)}
        assert sorted((row, step) for row, step, _ in actor.told) == [(i, t) for i in range(3) for t in range(8)]


def test_terminated_episodes_have_no_final_value():
    with counters(2, length=3) as env:
        got = WorkerCollector(env, n_steps=4, normalise_obs=False).collect(Ones())
        assert got.terminated[2].all()
        assert not got.truncated.any()
        assert not got.final_values.any()


def test_who_is_ready_first_changes_no_number():
    """Draws depend on row and step: other workers, another pace, the same trajectory."""
    found = []
    for workers, least in ((1, None), (2, None), (3, 1)):
        fns = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)] * 3
        with ProcessVectorEnv(fns, workers=workers, autoreset_mode="SameStep") as env:
            collector = WorkerCollector(env, n_steps=40, seed=3, min_ready=least, normalise_rewards=True)
            weights = Weights(initial(collector.spec, 0))
            for _ in range(2):
                got = collector.collect(weights)
            names = ("obs", "actions", "log_probs", "values", "rewards", "terminated", "truncated", "final_values")
            found.append([*(getattr(got, name).copy() for name in (*names, "last_values"))])
            assert got.version == 1
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))
    assert found[0][6].any()
    assert (found[0][7] != 0).sum() == found[0][6].sum()


def test_moments_are_those_of_what_was_seen_and_can_be_kept():
    with counters(2, length=50) as env:
        collector = WorkerCollector(env, n_steps=10, normalise_rewards=True, gamma=1.0)
        raw = collector.collect(Ones()).obs.reshape(-1, 3).copy()
        moments, returns = collector.moments
        assert moments.count == 20
        np.testing.assert_allclose(moments.mean, raw.mean(0), rtol=1e-6)
        np.testing.assert_allclose(moments.variance, raw.var(0), rtol=1e-5, atol=1e-9)
        assert returns.mean[0] == np.arange(1, 11).mean()
        second = collector.collect(Ones())
        np.testing.assert_allclose(second.obs[0, 0, 2], (10 - 4.5) / np.sqrt(8.25 + 1e-8), rtol=1e-5)
        other = WorkerCollector(env, n_steps=10, normalise_rewards=True)
        other.load_state_dict(collector.state_dict())
        assert other.moments[0].count == 40
        assert other.collect(Ones()).first_step == 20
        with pytest.raises(InvalidInput, match="obs_mean: expected"):
            other.load_state_dict({**collector.state_dict(), "obs_mean": np.zeros(2)})


def test_an_episode_that_a_fault_cut_is_no_episode(tmp_path):
    bad = partial(Counter, 1, length=4, wrong="raise", at=2, once=tmp_path / "once")
    with ProcessVectorEnv([partial(Counter, 0, length=4), bad], workers=1, autoreset_mode="SameStep") as env:
        got = WorkerCollector(env, n_steps=6, normalise_obs=False).collect(Ones())
        assert got.truncated[:, 1].tolist() == [0, 1, 0, 0, 0, 0]
        assert got.rewards[1, 1] == 0
        assert got.final_values[1, 1] == 1 + 1 + 1  # of the last observation there is, that of step 1
        assert got.terminated[:, 1].tolist() == [0, 0, 0, 0, 0, 1]
        assert got.stats.lengths.tolist() == [4, 4]
        assert env.tally.lost_episodes == 1


def test_a_cancelled_collect_can_be_followed_by_another():
    with counters(2, delay_s=0.2) as env:
        collector = WorkerCollector(env, n_steps=3, normalise_obs=False)
        ctx = Context()
        ctx.cancel()
        with pytest.raises(Cancelled):
            collector.collect(Ones(), ctx=ctx)
        assert collector.collect(Ones()).obs[:, 0, 2].tolist() == [0, 1, 2]


def test_agents_are_rows_of_a_trajectory_while_all_of_them_play():
    with ParallelVectorEnv([partial(Tag, lasting=50, limit=3)] * 2, workers=2, autoreset_mode="SameStep") as env:
        got = WorkerCollector(env, n_steps=4, normalise_obs=False).collect(Ones())
        assert got.obs.shape == (4, 6, 3)
        assert got.truncated[2].all()
        assert got.final_values[2].tolist() == [1 + 3 + agent for agent in (0, 1, 2)] * 2
    with ParallelVectorEnv([partial(Tag, lasting=2)], workers=1, autoreset_mode="SameStep") as env:
        collector = WorkerCollector(env, n_steps=4)
        with pytest.raises(InvalidInput, match="an agent left"):
            collector.collect(Ones())


def test_what_does_not_fit_is_refused():
    with ProcessVectorEnv([Counter], workers=1) as env, pytest.raises(InvalidInput, match="'SameStep', got 'NextStep'"):
        WorkerCollector(env, n_steps=4)
    with counters(2) as env, pytest.raises(InvalidInput, match="min_ready 1 … 2"):
        WorkerCollector(env, n_steps=4, min_ready=3)


def test_flattened_observations_are_gymnasiums():
    space = spaces.Dict(
        a=spaces.Box(-1, 1, (2, 2)),
        b=spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]),
        c=spaces.MultiDiscrete([2, 4], start=[0, 5]),
    )
    space.seed(0)
    rows = Rows(space, 3, np.zeros(Rows.nbytes(space, 3), np.uint8))
    put, samples = writer(rows), [space.sample() for _ in range(3)]
    for row, sample in enumerate(samples):
        put(row, sample)
    expected = [spaces.flatten(space, sample) for sample in samples]
    assert flat_size(space) == spaces.flatdim(space)
    np.testing.assert_array_equal(flat_rows(rows, slice(None)), np.array(expected, np.float32))


def test_a_learner_learns_from_it():
    with ProcessVectorEnv.make("CartPole-v1", 16, workers=2, autoreset_mode="SameStep", infos=False) as env:
        collector = WorkerCollector(env, n_steps=64, seed=1)
        assert collector.env_spec.reward_threshold == 475.0
        config = PpoConfig(learning_rate=1e-3)
        learner = NativePpo(collector.spec, config, initial(collector.spec, 1), seed=1)
        weights, means = Weights(learner.parameters), []
        for _ in range(25):
            trajectory = collector.collect(weights)
            learner.update(trajectory)
            weights.publish(learner.parameters)
            means.append(trajectory.stats.mean_return)
        assert means[0] < 40
        assert np.nanmean(means[-3:]) > 100
