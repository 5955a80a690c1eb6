"""What the native learner promises beside its gradients: the same bits on any threads and after a resume, every sample
once an epoch, bad input refused with nothing changed, and that it learns."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, InvalidInput
from headrace.rl.learners.a2c import A2cConfig, NativeA2c
from headrace.rl.learners.ppo import NativePpo, PpoConfig
from headrace.rl.policy import Categorical, Gaussian, MlpSpec, Policy, initial
from headrace.rl.returns import gae
from headrace.rl.trajectory import Trajectory

SPEC = MlpSpec(4, (32, 20), "tanh", Categorical((2, 3)))
CONTINUOUS = MlpSpec(3, (16,), "relu", Gaussian(2))
NAMES = ("obs", "actions", "log_probs", "values", "advantages", "returns")


def steps(spec: MlpSpec, count: int, seed: int = 0) -> dict[str, Any]:
    """Steps of the initial policy, which takes all actions equally often."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {name: rng.standard_normal(count).astype(np.float32) for name in NAMES}
    found["obs"] = rng.standard_normal((count, spec.obs_size)).astype(np.float32)
    if isinstance(spec.head, Categorical):
        actions = [rng.integers(size, size=count) for size in spec.head.sizes]
        found["actions"] = np.stack(actions, 1).astype(np.int32)
        found["log_probs"] = np.full(count, -math.log(math.prod(spec.head.sizes)), np.float32)
    else:
        found["actions"] = rng.standard_normal((count, spec.head.n)).astype(np.float32)
        found["log_probs"] = (-0.5 * found["actions"] ** 2 - 0.5 * math.log(2 * math.pi)).sum(1).astype(np.float32)
    return found


def bits(learner: Any) -> bytes:
    state = learner.state()
    return b"".join(np.asarray(state[name]).tobytes() for name in sorted(state))


def learner(spec: MlpSpec = SPEC, config: PpoConfig | None = None, **more: Any) -> NativePpo:
    return NativePpo(spec, config or PpoConfig(minibatches=4), initial(spec, 7), **more)


@pytest.mark.parametrize("spec", [SPEC, CONTINUOUS], ids=["categorical", "gaussian"])
def test_threads_change_no_bit(spec: MlpSpec) -> None:
    found = set()
    for threads in (1, 2, 5):
        one = learner(spec, seed=3, threads=threads)
        losses = [one.learn(**steps(spec, 1003, seed)) for seed in range(3)]
        found.add((bits(one), tuple(losses)))
    assert len(found) == 1


def test_another_seed_shuffles_otherwise() -> None:
    states = set()
    for seed in (1, 2):
        one = learner(seed=seed, threads=1)
        one.learn(**steps(SPEC, 100))
        states.add(one.parameters.tobytes())
    assert len(states) == 2


def test_a_state_goes_on_bit_by_bit() -> None:
    straight = learner(seed=5, threads=2)
    for seed in range(4):
        straight.learn(**steps(SPEC, 300, seed))
    first, second = learner(seed=5, threads=1), learner(seed=5, threads=2)
    for seed in range(2):
        first.learn(**steps(SPEC, 300, seed))
    second.load(first.state())
    for seed in range(2, 4):
        second.learn(**steps(SPEC, 300, seed))
    assert bits(second) == bits(straight)
    assert second.state()["steps"] == 4 * 4 * 4
    assert second.state()["updates"] == 4


@given(count=st.integers(1, 700), minibatches=st.integers(1, 9), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=40, deadline=None)
def test_an_epoch_sees_every_sample_once(count: int, minibatches: int, seed: int) -> None:
    """With a learning rate of 0 the weighted losses of all minibatches make the loss of the whole."""
    minibatches = min(minibatches, count)
    count -= count % minibatches  # of equal size, so that the mean of means is the mean
    found = steps(SPEC, count, 1)
    plain = PpoConfig(epochs=1, minibatches=1, learning_rate=0.0, normalise_advantages=False)
    whole = learner(config=plain, threads=1).learn(**found)
    parts = learner(config=replace(plain, minibatches=minibatches), seed=seed, threads=2).learn(**found)
    for name in ("policy", "value", "entropy", "approx_kl"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-5, abs=1e-6), name
    assert parts.steps == minibatches


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_and_nothing_changes(name: str, bad: float) -> None:
    for spec in (SPEC, CONTINUOUS):
        if name == "actions" and spec is SPEC:
            continue
        one = learner(spec, threads=2)
        one.learn(**steps(spec, 200))
        before = bits(one)
        found = steps(spec, 200)
        found[name].reshape(200, -1)[123, -1] = bad
        with pytest.raises(InvalidInput, match=rf"{name}\[123\].*expected a finite number, got -?(nan|inf)"):
            one.learn(**found)
        assert bits(one) == before
        one.learn(**steps(spec, 200, 1))


@pytest.mark.parametrize(("head", "action"), [(0, 2), (0, -1), (1, 3), (1, 2**31 - 1)])
def test_an_action_that_does_not_exist_is_refused(head: int, action: int) -> None:
    one = learner(threads=2)
    before = bits(one)
    found = steps(SPEC, 64)
    found["actions"][17, head] = action
    with pytest.raises(InvalidInput, match=rf"actions\[17\]\[{head}\]: expected 0..{1 + head}, got {action}"):
        one.learn(**found)
    assert bits(one) == before


def test_a_gradient_that_overflows_is_refused_and_nothing_changes() -> None:
    one = learner(config=PpoConfig(minibatches=4, normalise_advantages=False), threads=2)
    one.learn(**steps(SPEC, 400))
    before = bits(one)
    found = steps(SPEC, 400)
    found["returns"][399] = 3e38  # its square is not finite
    with pytest.raises(InvalidInput, match=r"gradient is not finite after [0-3] steps"):
        one.learn(**found)
    assert bits(one) == before


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("obs", np.zeros((10, 5), np.float32), r"obs: expected float32\[10, 4\], got float32\[10, 5\]"),
        ("obs", np.zeros((10, 4)), r"obs: expected float32\[10, 4\], got float64"),
        ("actions", np.zeros((10, 2), np.int64), r"actions: expected int32\[10, 2\], got int64"),
        ("actions", np.zeros((10,), np.int32), r"actions: expected int32\[10, 2\], got int32\[10\]"),
        ("returns", np.zeros((9,), np.float32), r"returns: expected float32\[10\], got float32\[9\]"),
    ],
)
def test_shapes_and_dtypes_are_checked(name: str, array: np.ndarray, message: str) -> None:
    found = steps(SPEC, 10) | {name: array}
    with pytest.raises(InvalidInput, match=message):
        learner(threads=1).learn(**found)


def test_fewer_samples_than_minibatches_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"minibatches: expected 1\.\.3, the number of samples, got 4"):
        learner(threads=1).learn(**steps(SPEC, 3))


def test_leading_axes_and_layout_do_not_matter() -> None:
    flat, shaped = learner(threads=1), learner(threads=1)
    found = steps(SPEC, 60)
    flat.learn(**found)
    shaped.learn(**{name: np.asfortranarray(a.reshape(6, 10, *a.shape[1:])) for name, a in found.items()})
    assert bits(flat) == bits(shaped)


def test_an_update_learns_from_generalised_advantages() -> None:
    trajectory = Trajectory.empty(SPEC, n_envs=6, n_steps=10)
    found = {name: array.reshape(10, 6, *array.shape[1:]) for name, array in steps(SPEC, 60).items()}
    for name in ("obs", "actions", "log_probs", "values"):
        getattr(trajectory, name)[...] = found[name]
    trajectory.rewards[...] = found["returns"]
    for name in ("terminated", "truncated"):
        getattr(trajectory, name)[...] = np.random.default_rng(8).random((10, 6)) < 0.1
    trajectory.final_values[...], trajectory.last_values[...] = 0.5, 0.3
    config = PpoConfig(minibatches=4, gamma=0.9, gae_lambda=0.8)
    whole, parts = learner(config=config, threads=1), learner(config=config, threads=1)
    losses = whole.update(trajectory)
    advantages, returns = gae(trajectory.steps, 0.9, 0.8, native=False)
    assert parts.learn(**found | {"advantages": advantages, "returns": returns}) == losses
    assert bits(whole) == bits(parts)


def test_divergence_ends_an_update_before_the_step() -> None:
    config = PpoConfig(learning_rate=0.01, epochs=10, minibatches=2, target_kl=0.02)
    one = learner(config=config, threads=2)
    losses = one.learn(**steps(SPEC, 400))
    assert losses.stopped
    assert 1 <= losses.steps < 20
    assert one.state()["steps"] == losses.steps
    assert not learner(config=replace(config, target_kl=None), threads=1).learn(**steps(SPEC, 400)).stopped


def test_explained_variance_is_of_the_old_values() -> None:
    found = steps(SPEC, 500)
    found["values"] = (found["returns"] + 0.3 * found["values"]).astype(np.float32)
    losses = learner(threads=1).learn(**found)
    expected = 1 - np.var(found["returns"].astype(float) - found["values"]) / np.var(found["returns"].astype(float))
    assert losses.explained_variance == pytest.approx(expected, rel=1e-6)
    found["returns"][:] = 1.0
    assert math.isnan(learner(threads=1).learn(**found).explained_variance)


def test_schedules_go_to_nothing() -> None:
    config = PpoConfig(learning_rate=0.1, learning_rate_schedule="linear", entropy_coef=0.4, entropy_schedule="cosine")
    assert [config.options(p)["learning_rate"] for p in (0.0, 0.25, 1.0, 7.0)] == [0.1, pytest.approx(0.075), 0.0, 0.0]
    assert [config.options(p)["entropy_coef"] for p in (0.0, 0.5, 1.0)] == [0.4, pytest.approx(0.2), 0.0]
    one = learner(config=config, threads=1)
    before = one.parameters
    one.learn(**steps(SPEC, 40), progress=1.0)
    np.testing.assert_array_equal(one.parameters, before)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (PpoConfig, "clip", 0.0),
        (PpoConfig, "clip", math.nan),
        (PpoConfig, "epochs", 0),
        (PpoConfig, "epochs", 2.0),
        (PpoConfig, "minibatches", True),
        (PpoConfig, "learning_rate", -1e-3),
        (PpoConfig, "learning_rate", "fast"),
        (PpoConfig, "gamma", 1.5),
        (PpoConfig, "target_kl", -1.0),
        (PpoConfig, "adam_beta2", 1.0),
        (PpoConfig, "entropy_schedule", "exponential"),
        (PpoConfig, "normalise_advantages", "no"),
        (A2cConfig, "gae_lambda", -0.1),
        (A2cConfig, "max_grad_norm", math.inf),
        (A2cConfig, "learning_rate_schedule", None),
    ],
)
def test_a_setting_out_of_range_is_named(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{name}: expected .*, got "):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": np.zeros(3, np.float32)}, r"parameters: expected float32\[\d+\], got float32\[3\]"),
        ({"seed": 9}, "seed 0"),
        ({"steps": -1}, "counters"),
        ({"first_moments": None}, "lacks first_moments"),
    ],
)
def test_a_foreign_state_is_refused_and_nothing_changes(change: dict[str, Any], message: str) -> None:
    one = learner(threads=1)
    before = bits(one)
    state = {name: part for name, part in {**one.state(), **change}.items() if part is not None}
    with pytest.raises(InvalidInput, match=message):
        one.load(state)
    state = one.state()
    np.asarray(state["second_moments"])[5] = np.nan
    with pytest.raises(InvalidInput, match=r"second_moments\[5\]: expected a finite number"):
        one.load(state)
    assert bits(one) == before


def test_calls_from_several_threads_wait_for_each_other() -> None:
    one = learner(threads=2)
    calls = [threading.Thread(target=one.learn, kwargs=steps(SPEC, 200, 3)) for _ in range(4)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    alone = learner(threads=1)
    for _ in range(4):
        alone.learn(**steps(SPEC, 200, 3))
    assert bits(one) == bits(alone)


@pytest.mark.parametrize("kind", ["ppo", "a2c"])
@pytest.mark.parametrize("continuous", [False, True], ids=["categorical", "gaussian"])
def test_it_learns_what_pays(kind: str, continuous: bool) -> None:
    """One-step episodes: the action that pays is the sign of what is seen, or that number itself."""
    head = Gaussian(1) if continuous else Categorical((2,))
    spec = MlpSpec(1, (16,), "tanh", head)
    flat, policy, rng = initial(spec, 0), Policy(spec), np.random.default_rng(0)
    config = {"learning_rate": 0.01, "entropy_coef": 0.0}
    one: Any = (
        NativePpo(spec, PpoConfig(minibatches=2, **config), flat, threads=1)  # type: ignore[arg-type]
        if kind == "ppo"
        else NativeA2c(spec, A2cConfig(normalise_advantages=True, **config), flat, threads=1)  # type: ignore[arg-type]
    )
    rewards = np.zeros(0)
    for update in range(80 if kind == "ppo" else 400):
        obs = rng.uniform(-1, 1, (256, 1)).astype(np.float32)
        actions, log_probs, values = policy.act(one.parameters, obs, seed=1, step=update)
        good = -((actions[:, 0] - obs[:, 0]) ** 2) if continuous else (actions[:, 0] > 0) == (obs[:, 0] > 0)
        rewards = good.astype(np.float32)
        one.learn(obs, actions, log_probs, values, (rewards - values).astype(np.float32), rewards)
    assert rewards.mean() > (-0.2 if continuous else 0.95)
