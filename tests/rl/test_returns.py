"""Returns equal rlax's (tools/golden_rlax.py), natively and in NumPy; both agree on any trajectory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.rl.returns import Steps, gae, n_step, vtrace

FLAGS = ("terminated", "truncated")
FIELDS = ("rewards", "values", "terminated", "truncated", "final_values", "last_values")


def random_steps(seed: int, n_steps: int, n_envs: int, ends: float = 0.15) -> Steps:
    rng = np.random.default_rng(seed)
    shape = (n_steps, n_envs)
    truncated = (rng.random(shape) < ends).astype(np.uint8)
    return Steps(
        rewards=rng.normal(size=shape).astype(np.float32),
        values=rng.normal(size=shape).astype(np.float32),
        terminated=(rng.random(shape) < ends).astype(np.uint8),
        truncated=truncated,
        final_values=(rng.normal(size=shape) * truncated).astype(np.float32),
        last_values=rng.normal(size=n_envs).astype(np.float32),
    )


@pytest.fixture(scope="module")
def golden(checkout: Path) -> dict[str, Any]:
    return json.loads((checkout / "tests" / "golden" / "rl" / "returns.json").read_text())


@pytest.mark.parametrize("native", [True, False])
def test_they_are_those_of_rlax(golden: dict[str, Any], native: bool) -> None:
    arrays = {
        name: np.array(values, np.uint8 if name in FLAGS else np.float32)
        for name, values in golden["trajectory"].items()
    }
    steps, settings, wanted = Steps(*(arrays[name] for name in FIELDS)), golden["settings"], golden["rlax"]
    assert arrays["truncated"].any()
    assert arrays["terminated"].any()
    advantages, returns = gae(steps, settings["gamma"], settings["lam"], native=native)
    np.testing.assert_allclose(advantages, wanted["advantages"], atol=2e-6)
    np.testing.assert_allclose(returns, wanted["advantages"] + steps.values, atol=2e-6)
    targets, pg_advantages = vtrace(
        steps,
        arrays["log_rhos"],
        settings["gamma"],
        lam=settings["lam"],
        clip_rho=settings["clip_rho"],
        clip_pg_rho=settings["clip_pg_rho"],
        native=native,
    )
    np.testing.assert_allclose(targets, wanted["vtrace_targets"], atol=3e-6)
    np.testing.assert_allclose(pg_advantages, wanted["vtrace_advantages"], atol=3e-6)
    np.testing.assert_allclose(
        n_step(steps, settings["gamma"], settings["n"], native=native), wanted["n_step"], atol=2e-6
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    n_steps=st.integers(1, 30),
    n_envs=st.integers(1, 20),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    n=st.integers(1, 40),
    clip=st.floats(0.1, 3),
)
def test_native_and_numpy_agree(
    seed: int, n_steps: int, n_envs: int, gamma: float, lam: float, n: int, clip: float
) -> None:
    steps = random_steps(seed, n_steps, n_envs)
    log_rhos = np.random.default_rng(seed).normal(scale=0.5, size=(n_steps, n_envs)).astype(np.float32)
    for mine, twin in zip(gae(steps, gamma, lam), gae(steps, gamma, lam, native=False), strict=True):
        np.testing.assert_allclose(mine, twin, rtol=1e-5, atol=1e-5)
    options: dict[str, Any] = {"lam": lam, "clip_rho": clip, "clip_c": clip / 2, "clip_pg_rho": 1.1}
    for mine, twin in zip(
        vtrace(steps, log_rhos, gamma, **options), vtrace(steps, log_rhos, gamma, native=False, **options), strict=True
    ):
        np.testing.assert_allclose(mine, twin, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(n_step(steps, gamma, n), n_step(steps, gamma, n, native=False), rtol=1e-5, atol=1e-5)


def test_vtrace_on_the_policys_own_data_is_the_lambda_return() -> None:
    steps = random_steps(3, 20, 5)
    targets, advantages = vtrace(steps, np.zeros_like(steps.rewards), 0.95)
    np.testing.assert_allclose(targets, gae(steps, 0.95, 1.0)[1], atol=1e-5)
    np.testing.assert_allclose(advantages, targets - steps.values, atol=1e-5)


def test_truncation_looks_ahead_and_termination_does_not() -> None:
    shape = (2, 1)
    flags = np.array([[1], [0]], np.uint8)
    common = {
        "rewards": np.ones(shape, np.float32),
        "values": np.full(shape, 5, np.float32),
        "final_values": np.array([[7], [0]], np.float32),
        "last_values": np.array([3], np.float32),
    }
    none = np.zeros(shape, np.uint8)
    for native in (True, False):
        truncated = gae(Steps(terminated=none, truncated=flags, **common), 0.5, 1.0, native=native)[0]
        terminated = gae(Steps(terminated=flags, truncated=none, **common), 0.5, 1.0, native=native)[0]
        both = gae(Steps(terminated=flags, truncated=flags, **common), 0.5, 1.0, native=native)[0]
        assert truncated.ravel().tolist() == [1 + 0.5 * 7 - 5, 1 + 0.5 * 3 - 5]
        assert terminated.ravel().tolist() == both.ravel().tolist() == [1 - 5, 1 + 0.5 * 3 - 5]


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_array_is_named(name: str) -> None:
    arrays = {field: getattr(random_steps(0, 4, 3), field) for field in FIELDS}
    for wrong in (arrays[name].astype(np.float64), arrays[name][..., :2], np.asfortranarray(arrays[name])[::-1]):
        with pytest.raises(InvalidInput, match="expected" if name == "rewards" else name):
            Steps(**{**arrays, name: wrong})


def test_settings_are_looked_at() -> None:
    steps = random_steps(0, 4, 3)
    with pytest.raises(InvalidInput, match="n_step"):
        n_step(steps, 0.9, 0)
    with pytest.raises(InvalidInput, match="log_rhos"):
        vtrace(steps, np.zeros((4, 2), np.float32), 0.9)
