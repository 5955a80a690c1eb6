"""Trajectories are what the environment and the policy say they are, whoever collects them."""

from __future__ import annotations

import threading
from dataclasses import fields

import numpy as np
import pytest

from headrace import _native
from headrace.errors import InvalidInput
from headrace.rl.envs import CompiledEnv, make_env
from headrace.rl.envs.batch import BatchEnv
from headrace.rl.normalise import Moments, Normaliser
from headrace.rl.policy import MlpSpec, Policy, Weights, initial
from headrace.rl.rollout import Collector, Trajectory

ARRAYS = [field.name for field in fields(Trajectory) if field.name not in ("stats", "version", "first_step")]


def copied(trajectory: Trajectory) -> dict[str, np.ndarray]:
    return {name: getattr(trajectory, name).copy() for name in ARRAYS}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(left[name].tobytes() == right[name].tobytes() for name in ARRAYS)


def trained(spec: MlpSpec, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    flat = initial(spec, seed)
    return (flat + rng.normal(scale=0.05, size=flat.shape)).astype(np.float32)


def test_a_trajectory_is_what_the_environment_does_under_its_actions(cartpole: CompiledEnv) -> None:
    n_envs, n_steps, seed = 100, 40, 5
    collector = Collector(cartpole, n_envs=n_envs, n_steps=n_steps, seed=seed)
    weights = Weights(trained(collector.spec))
    policy, batch = Policy(collector.spec), BatchEnv(cartpole, n_envs, seed=seed)
    raw, returns, finished = batch.reset().copy(), np.zeros(n_envs), []
    lengths, seen = np.zeros(n_envs, int), Moments.zeros(4)
    for round_number in range(3):
        normalise = Normaliser.of(seen.copy())
        trajectory = collector.collect(weights)
        assert trajectory.first_step == round_number * n_steps
        assert trajectory.version == 1
        for t in range(n_steps):
            np.testing.assert_allclose(trajectory.obs[t], normalise(raw), atol=2e-5)
            seen.update(raw)
            decision = policy.act(weights.read()[0], trajectory.obs[t], seed=seed, step=trajectory.first_step + t)
            assert (decision.actions == trajectory.actions[t]).all()
            assert (decision.log_probs == trajectory.log_probs[t]).all()
            assert (decision.values == trajectory.values[t]).all()
            step = batch.step(trajectory.actions[t, :, 0])
            ended = step.terminated | step.truncated
            assert (step.reward == trajectory.rewards[t]).all()
            assert (step.terminated == trajectory.terminated[t]).all()
            assert (step.truncated == trajectory.truncated[t]).all()
            returns, lengths, raw = returns + step.reward, lengths + 1, step.obs.copy()
            finished += zip(returns[ended], lengths[ended], strict=True)
            returns[ended], lengths[ended] = 0, 0
        last = policy.forward(weights.read()[0], normalise(raw))[1]
        np.testing.assert_allclose(trajectory.last_values, last, atol=1e-4)
        stats = trajectory.stats
        assert sorted(zip(stats.returns, stats.lengths, strict=True)) == sorted(finished)
        assert stats.episodes == len(finished) > 50
        assert stats.mean_length == stats.mean_return == np.mean([length for _, length in finished])
        assert (stats.min_length, stats.max_return) == (min(finished)[1], max(finished)[0])
        finished = []
    observations, _ = collector.moments
    assert observations.count == seen.count
    np.testing.assert_allclose(observations.mean, seen.mean, atol=1e-9)
    np.testing.assert_allclose(observations.m2, seen.m2, rtol=1e-9)


def test_truncated_episodes_know_the_value_of_their_last_observation() -> None:
    env = make_env("headrace/Pendulum-v1")  # never terminates; 200 steps
    collector = Collector(env, n_envs=70, n_steps=50, seed=2)
    flat = trained(collector.spec)
    policy, batch = Policy(collector.spec), BatchEnv(env, 70, seed=2)
    batch.reset()
    for round_number in range(8):
        normalise = Normaliser.of(collector.moments[0])
        trajectory = collector.collect(flat)
        for t in range(50):
            clipped = trajectory.actions[t].clip(-2, 2)
            assert (batch.step(clipped).reward == trajectory.rewards[t]).all()
        ends = round_number in (3, 7)
        assert trajectory.truncated.sum() == (70 if ends else 0)
        assert trajectory.truncated[-1].all() == ends
        assert not trajectory.final_values[:-1].any()
        if ends:
            values = policy.forward(flat, normalise(batch.final_obs.reshape(70, -1)))[1]
            np.testing.assert_allclose(trajectory.final_values[-1], values, atol=1e-4)
            assert trajectory.stats.mean_length == 200
            assert np.abs(trajectory.final_values[-1] - trajectory.last_values).max() > 1e-3
    assert (np.abs(trajectory.actions) > 2).any(), "actions are kept as they were drawn"
    assert trajectory.actions.shape == (50, 70, 1)


@pytest.mark.parametrize("name", ["headrace/CartPole-v1", "headrace/Pendulum-v1", "headrace/IdentityMulti-v0"])
def test_nothing_depends_on_threads_shards_or_processor(name: str) -> None:
    env = make_env(name)
    runs = []
    for threads, shard, isa in ((1, 0, ""), (2, 64, ""), (3, 128, ""), (2, 64, _native.supported_isas()[0])):
        collector = Collector(
            env, n_envs=300, n_steps=20, seed=9, threads=threads, shard=shard, isa=isa, normalise_rewards=True
        )
        flat = trained(collector.spec)
        trajectories = [copied(collector.collect(flat)) for _ in range(3)]
        runs.append((trajectories, collector.state_dict()))
    for trajectories, state in runs[1:]:
        assert all(same(a, b) for a, b in zip(trajectories, runs[0][0], strict=True))
        assert all((state[key] == runs[0][1][key]).all() for key in state)


def test_another_seed_gives_another_trajectory(cartpole: CompiledEnv) -> None:
    def actions(seed: int) -> np.ndarray:
        collector = Collector(cartpole, n_envs=64, n_steps=10, seed=seed)
        return collector.collect(initial(collector.spec, 0)).actions.copy()

    assert (actions(1) == actions(1)).all()
    assert 0.3 < (actions(1) == actions(2)).mean() < 0.7


def test_collecting_goes_on_where_a_state_was_taken(cartpole: CompiledEnv) -> None:
    def make(seed: int) -> Collector:
        return Collector(cartpole, n_envs=90, n_steps=15, seed=seed, threads=1, normalise_rewards=True)

    first, second = make(1), make(2)
    flat = trained(first.spec)
    for _ in range(3):
        first.collect(flat)
    state = first.state_dict()
    wanted = [copied(first.collect(flat)) for _ in range(3)]
    second.load_state_dict(state)
    assert all(same(copied(second.collect(flat)), trajectory) for trajectory in wanted)
    for wrong in ({**state, "obs": state["obs"][:-1]}, {**state, "seed": state["seed"].astype(float)},
                  {key: value for key, value in state.items() if key != "env"}):  # fmt: skip
        with pytest.raises(InvalidInput, match=r"collector state: (obs|seed|env)"):
            second.load_state_dict(wrong)


def test_the_arrays_are_made_once(cartpole: CompiledEnv) -> None:
    collector = Collector(cartpole, n_envs=64, n_steps=10)
    flat = initial(collector.spec, 0)
    first = collector.collect(flat)
    places = [getattr(first, name).__array_interface__["data"][0] for name in ARRAYS]
    assert all(place % 64 == 0 for place in places)
    again = collector.collect(flat)
    assert again is first
    assert [getattr(again, name).__array_interface__["data"][0] for name in ARRAYS] == places
    other = Trajectory.empty(collector.spec, 64, 10)
    before = copied(first)
    assert collector.collect(flat, out=other) is other
    assert same(copied(first), before)


def test_evaluation_leaves_statistics_alone(cartpole: CompiledEnv) -> None:
    trainer = Collector(cartpole, n_envs=64, n_steps=20)
    flat = trained(trainer.spec)
    trainer.collect(flat)
    observations, _ = trainer.moments
    judge = Collector(cartpole, n_envs=64, n_steps=20, seed=77, update_moments=False, greedy=True)
    judge.set_moments(observations)
    trajectory = judge.collect(flat)
    assert judge.moments[0].count == observations.count
    logits, _ = Policy(judge.spec).forward(flat, trajectory.obs[3])
    assert (trajectory.actions[3, :, 0] == logits.argmax(axis=1)).all()
    with pytest.raises(InvalidInput, match="moments"):
        judge.set_moments(Moments.zeros(3))


def test_versions_tell_how_old_the_policy_is(cartpole: CompiledEnv) -> None:
    collector = Collector(cartpole, n_envs=64, n_steps=10)
    weights = Weights(initial(collector.spec, 0))
    for seed in range(1, 4):
        weights.publish(initial(collector.spec, seed))
    trajectory = collector.collect(weights)
    weights.publish(initial(collector.spec, 9))
    assert (trajectory.version, weights.version - trajectory.version) == (4, 1)


def test_collecting_leaves_the_interpreter_free(cartpole: CompiledEnv) -> None:
    collector = Collector(cartpole, n_envs=512, n_steps=2000, threads=1)
    flat = initial(collector.spec, 0)
    worker = threading.Thread(target=collector.collect, args=(flat,))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
    worker.join()
    assert turns > 100
