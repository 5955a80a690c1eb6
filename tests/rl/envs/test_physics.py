"""Discs in a box and a hovering plank: against NumPy, against plain Python, and against what physics says."""

from __future__ import annotations

import ctypes
import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from headrace.rl.envs import CompiledEnv, compile
from headrace.rl.envs.hover import Hover
from headrace.rl.envs.particles import particles
from headrace.rl.envs.plain import PlainEnv

N = 300
Discs = particles(N, "test/Discs-v0")


class Batch:
    """A compiled environment called through its C face, DISABLED autoreset."""

    def __init__(self, env: CompiledEnv, n: int, seed: int) -> None:
        kinds = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64]
        self._step = ctypes.CFUNCTYPE(None, *kinds, *[ctypes.c_void_p] * 6, ctypes.c_int32)(env.step_address)
        self.block, self.n, self.seed, self.env = env.new_state(n), n, seed, env
        self.obs = np.zeros((n, env.spec.obs_size), np.float32)
        self.final_obs, self.reward = self.obs.copy(), np.zeros(n, np.float32)
        self.terminated, self.truncated = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
        reset = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_void_p)(env.reset_address)
        reset(self.block.ctypes.data, n, seed, 0, n, self.obs.ctypes.data)

    def step(self, actions: np.ndarray) -> None:
        arrays = (actions, self.obs, self.final_obs, self.reward, self.terminated, self.truncated)
        self._step(self.block.ctypes.data, self.n, self.seed, 0, self.n, *(a.ctypes.data for a in arrays), 0)

    def __getitem__(self, field: str) -> np.ndarray:
        return self.env.views(self.block, self.n)[field][0]


@pytest.fixture(scope="module")
def discs() -> CompiledEnv:
    return compile(Discs)


def _forces(place: np.ndarray, velocity: np.ndarray, params: Any) -> np.ndarray:
    """Accelerations in float64, every pair looked at."""
    radius = math.sqrt(0.5 / (math.pi * N))
    offset = place[:, None] - place[None]
    distance = np.linalg.norm(offset, axis=2) + np.eye(N)
    normal = offset / distance[..., None]
    closing = ((velocity[:, None] - velocity[None]) * normal).sum(axis=2)
    push = np.where(distance < 2 * radius, params.stiffness * (2 * radius - distance) - params.damping * closing, 0.0)
    np.fill_diagonal(push, 0.0)
    walls = np.maximum(radius - place, 0) - np.maximum(place - (1 - radius), 0)
    return (push[..., None] * normal).sum(axis=1) + params.stiffness * walls


def test_discs_move_as_all_pairs_in_float64_say(discs: CompiledEnv) -> None:
    params = Discs.Params()
    batch = Batch(discs, 2, seed=3)
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = rng.uniform(-1, 1, (2, 2)).astype(np.float32)
        place = np.stack([batch["x"], batch["y"]], 1).astype(np.float64)
        velocity = np.stack([batch["vx"], batch["vy"]], 1).astype(np.float64)
        velocity = velocity + params.tau * (params.tilt * action[0] + _forces(place, velocity, params))
        place = place + params.tau * velocity
        batch.step(action)
        np.testing.assert_allclose(np.stack([batch["vx"], batch["vy"]], 1), velocity, atol=5e-6)
        np.testing.assert_allclose(np.stack([batch["x"], batch["y"]], 1), place, atol=5e-7)
        corner = (np.array([batch["corner_x"], batch["corner_y"]]) > 0).astype(float)
        assert batch.reward[0] == pytest.approx(-np.linalg.norm(place - corner, axis=1).mean(), rel=1e-5)


def test_discs_keep_their_number_and_their_box(discs: CompiledEnv) -> None:
    batch = Batch(discs, 1, seed=1)
    hard = np.array([[9.0, -9.0]], np.float32)  # counts as 1 and -1
    for _ in range(400):
        batch.step(hard)
        assert batch.obs[0, :64].sum() == pytest.approx(64, rel=1e-5)
    places = np.stack([batch["x"], batch["y"]])
    assert places.min() > -0.02
    assert places.max() < 1.02
    assert batch["x"].mean() > 0.55, "they have come to the side the box leans to"
    assert batch["y"].mean() < 0.45


def test_without_a_tilt_collisions_keep_the_momentum(discs: CompiledEnv) -> None:
    batch = Batch(discs, 1, seed=2)
    before = batch["vx"].sum(dtype=np.float64)
    inside = np.abs(np.stack([batch["x"], batch["y"]]) - 0.5).max()
    assert inside < 0.5 - math.sqrt(0.5 / (math.pi * N)), "no disc touches a wall at first"
    for _ in range(5):
        batch.step(np.zeros((1, 2), np.float32))
    assert batch["vx"].sum(dtype=np.float64) == pytest.approx(before, abs=1e-3)


@pytest.mark.parametrize("env", [Discs, Hover])
def test_compiled_is_what_plain_python_is(env: Any) -> None:
    compiled = compile(env)
    batch, plain = Batch(compiled, 2, seed=9), PlainEnv(compiled.definition, seed=9, number=1)
    np.testing.assert_allclose(batch.obs[1], plain.reset(), rtol=1e-6, atol=1e-7)
    rng = np.random.default_rng(1)
    for _ in range(4 if env is Discs else 400):
        action = rng.uniform(-1.5, 1.5, (2, 2)).astype(np.float32)
        batch.step(action)
        obs, reward, terminated, truncated = plain.step(action[1])
        np.testing.assert_allclose(batch.obs[1], obs, rtol=1e-5, atol=2e-6)
        assert batch.reward[1] == pytest.approx(reward, rel=1e-5)
        assert (batch.terminated[1], batch.truncated[1]) == (terminated, truncated)
        if terminated or truncated:
            break


def _plank(**changes: float) -> Any:
    return Hover.State(**{"x": 0.0, "y": 1.0, "tilt": 0.0, "vx": 0.0, "vy": 0.0, "spin": 0.0, **changes})


def test_a_plank_falls_floats_and_lands() -> None:
    params = Hover.Params()
    state = _plank(y=1.2)
    for _ in range(20):
        state = Hover.step(state, (-1.0, -1.0), None, params)[0]
    assert state.vy == pytest.approx(-params.gravity * 20 * params.tau)
    hovering, reward, over = Hover.step(_plank(), (0.0, 0.0), None, params)
    assert (hovering, over) == (_plank(), False)
    assert reward == 1.0
    state = _plank(y=0.5, tilt=0.2)
    for _ in range(1500):
        state = Hover.step(state, (-1.0, -1.0), None, params)[0]
    assert state.y == pytest.approx(params.half_height, abs=0.01)
    assert max(abs(state.vx), abs(state.vy), abs(state.spin)) < 1e-3
    assert math.sin(state.tilt) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(("left", "right"), [*product((-1.0, 1.0), repeat=2)])
def test_thrust_turns_towards_the_weaker_end(left: float, right: float) -> None:
    spin = Hover.step(_plank(), (left, right), None, Hover.Params())[0].spin
    assert np.sign(spin) == np.sign(right - left)
