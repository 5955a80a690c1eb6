"""The classic control tasks against Gymnasium's own, in float64: over whole episodes, to 1e-12.

Actions go to Gymnasium as float64, so that it computes in float64 too. Its MountainCarContinuous rounds its state to
float32 after each step; there its module is given a `np` whose float32 is float64. Its Acrobot is chaotic over 500
steps: one bit of a sine grows to 1e-7; there its module is given this project's sine and cosine (which the other tests
compare with the C library's), and without them every single step is compared instead.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.rl.envs import maths
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.spec import Discrete

TASKS = {
    "CartPole-v1": ("x", "x_dot", "theta", "theta_dot"),
    "Acrobot-v1": ("theta1", "theta2", "theta1_dot", "theta2_dot"),
    "MountainCar-v0": ("position", "velocity"),
    "MountainCarContinuous-v0": ("position", "velocity"),
    "Pendulum-v1": ("theta", "theta_dot"),
}


class Float64Numpy:
    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def their_module(monkeypatch, name):
    """Gymnasium's module, computing in float64 throughout."""
    module = importlib.import_module(type(gymnasium.make(name).unwrapped).__module__)
    if name == "MountainCarContinuous-v0":
        monkeypatch.setattr(module, "np", Float64Numpy())
    return module


def actions_of(space, steps: int, seed: int):
    """(theirs, ours): the same numbers, float32 that they are."""
    rng = np.random.default_rng(seed)
    if isinstance(space, Discrete):
        drawn = rng.integers(space.n, size=steps)
        return [(int(a), np.array([a])) for a in drawn]
    drawn = rng.uniform(space.low, space.high, (steps, space.size)).astype(np.float32)
    return [(a.astype(np.float64), a[np.newaxis]) for a in drawn]


def episode(name: str, compiled, seed: int, *, resync: bool) -> tuple[int, float]:
    """One episode side by side; (its length, the largest difference of any state). With `resync` both go on from
    Gymnasium's state after each step."""
    env = compiled(f"headrace/{name}")
    theirs = gymnasium.make(name).unwrapped
    theirs.reset(seed=seed)
    ours = BatchEnv(env, 1, autoreset=Autoreset.DISABLED)
    ours.reset()
    fields = [ours.fields()[field] for field in TASKS[name]]
    worst = 0.0

    def sync():
        for field, value in zip(fields, theirs.state, strict=True):
            field[0] = value

    sync()
    steps = 0
    for given, mine in actions_of(env.spec.action, env.spec.max_steps, seed):
        obs, reward, terminated, _, _ = theirs.step(given)
        seen = ours.step(mine)
        steps += 1
        state = np.array([field[0] for field in fields])
        worst = max(worst, float(np.abs(state - np.asarray(theirs.state, np.float64)).max()))
        np.testing.assert_allclose(seen.obs[0], obs, rtol=0, atol=1e-6)
        assert seen.reward[0] == pytest.approx(reward, rel=1e-6, abs=1e-6)
        assert bool(seen.terminated[0]) == terminated
        assert bool(seen.truncated[0]) == (steps == env.spec.max_steps)
        if terminated:
            break
        if resync:
            sync()
    return steps, worst


@pytest.mark.parametrize("name", sorted(TASKS))
def test_each_step_is_gymnasiums(name, compiled, their_module):
    for seed in range(3):
        _, worst = episode(name, compiled, seed, resync=True)
        assert worst < 1e-12


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"Acrobot-v1"}))
def test_whole_episodes_are_gymnasiums(name, compiled, their_module):
    lengths = []
    for seed in range(6):
        length, worst = episode(name, compiled, seed, resync=False)
        lengths.append(length)
        assert worst < 1e-12
    assert max(lengths) > 20


@pytest.mark.parametrize("name", ["Acrobot-v1"])
def test_whole_episodes_of_acrobot_are_gymnasiums(name, compiled, their_module, monkeypatch):
    monkeypatch.setattr(their_module, "sin", lambda x: maths.sin(float(x)))
    monkeypatch.setattr(their_module, "cos", lambda x: maths.cos(float(x)))
    for seed in range(2):
        length, worst = episode(name, compiled, seed, resync=False)
        assert length == 500
        assert worst < 1e-12


def test_a_pole_kept_up_stays_gymnasiums(compiled):
    """All 500 steps, truncated at the end: a policy that balances sees the same states, hence acts the same."""
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    ours = BatchEnv(compiled("headrace/CartPole-v1"), 1, autoreset=Autoreset.DISABLED)
    ours.reset()
    fields = SimpleNamespace(**ours.fields())
    for field, value in zip(TASKS["CartPole-v1"], theirs.state, strict=True):
        getattr(fields, field)[0] = value
    for step in range(1, 501):
        x, x_dot, theta, theta_dot = theirs.state
        action = int(0.1 * x + 0.3 * x_dot + 4 * theta + theta_dot > 0)
        theirs.step(action)
        seen = ours.step([action])
        state = [getattr(fields, field)[0] for field in TASKS["CartPole-v1"]]
        np.testing.assert_allclose(state, theirs.state, rtol=0, atol=1e-12)
        assert not seen.terminated[0]
        assert seen.truncated[0] == (step == 500)
