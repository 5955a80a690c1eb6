"""Losses, gradients and steps of the native learner against an actor-critic in float64 torch, written from the papers:
every head, activation and option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from headrace import _native
from headrace.rl.learners.a2c import A2cConfig, NativeA2c
from headrace.rl.learners.ppo import NativePpo, PpoConfig
from headrace.rl.policy import Categorical, Gaussian, MlpSpec, initial, n_parameters, native_arguments, views


@dataclass
class Batch:
    """Steps that some policy close to `parameters` took."""

    obs: Any
    actions: Any
    log_probs: Any
    values: Any
    advantages: Any
    returns: Any

    def columns(self) -> tuple[Any, ...]:
        return self.obs, self.actions, self.log_probs, self.values, self.advantages, self.returns


class Reference:
    """The twin of a flat vector, float64, whose gradients can be asked for."""

    def __init__(self, spec: MlpSpec, flat: np.ndarray) -> None:
        self.spec = spec
        self.weights = {name: torch.tensor(view, dtype=torch.float64) for name, view in views(spec, flat).items()}
        for weight in self.weights.values():
            weight.requires_grad_()

    def flat(self, of: Any = lambda weight: weight.detach()) -> np.ndarray:
        return np.concatenate([of(weight).numpy().ravel() for weight in self.weights.values()])

    def network(self, name: str, x: torch.Tensor) -> torch.Tensor:
        for layer in range(len(self.spec.hidden) + 1):
            x = x @ self.weights[f"{name}.{layer}.weight"].T + self.weights[f"{name}.{layer}.bias"]
            if layer < len(self.spec.hidden):
                x = torch.tanh(x) if self.spec.activation == "tanh" else torch.relu(x)
        return x

    def distributions(self, obs: torch.Tensor) -> list[torch.distributions.Distribution]:
        out, head = self.network("actor", obs), self.spec.head
        if isinstance(head, Gaussian):
            deviations = self.weights["log_std"].exp()
            return [torch.distributions.Normal(out[:, k], deviations[k]) for k in range(head.n)]
        return [torch.distributions.Categorical(logits=part) for part in out.split(list(head.sizes), 1)]

    def losses(self, batch: Batch, config: Any, *, ratio: bool = True) -> dict[str, torch.Tensor]:
        obs, actions, old_log_probs, old_values, advantages, returns = map(torch.tensor, map(_wide, batch.columns()))
        parts = self.distributions(obs)
        log_probs = sum(part.log_prob(actions[:, k]) for k, part in enumerate(parts))
        entropy = sum(part.entropy() for part in parts)
        if config.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        change = torch.exp(log_probs - old_log_probs)
        if ratio:
            surrogate = change * advantages
            if config.clip is not None:
                held = change.clamp(1 - config.clip, 1 + config.clip) * advantages
                surrogate = torch.min(surrogate, held)
        else:
            surrogate = log_probs * advantages
        values = self.network("critic", obs)[:, 0]
        errors = (values - returns) ** 2
        if getattr(config, "value_clip", None) is not None:
            held = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
            errors = torch.max(errors, (held - returns) ** 2)
        parts_of_loss = {
            "policy": -surrogate.mean(),
            "value": 0.5 * errors.mean(),
            "entropy": entropy.mean(),
            "approx_kl": (change - 1 - (log_probs - old_log_probs)).mean(),
        }
        parts_of_loss["loss"] = (
            parts_of_loss["policy"]
            + config.value_coef * parts_of_loss["value"]
            - config.entropy_coef * parts_of_loss["entropy"]
        )
        return parts_of_loss


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def some_parameters(spec: MlpSpec, rng: np.random.Generator) -> np.ndarray:
    """Fresh ones with noise, so that no layer's gradient is near 0."""
    noise = 0.2 * rng.standard_normal(n_parameters(spec))
    return (initial(spec, int(rng.integers(1 << 30))) + noise).astype(np.float32)


def some_batch(spec: MlpSpec, flat: np.ndarray, count: int, rng: np.random.Generator, moved: float = 0.3) -> Batch:
    """`moved`: how far the old policy is from the new one, as a standard deviation of log-probabilities."""
    obs = rng.standard_normal((count, spec.obs_size)).astype(np.float32)
    actions: np.ndarray
    if isinstance(spec.head, Categorical):
        actions = np.stack([rng.integers(size, size=count) for size in spec.head.sizes], 1).astype(np.int32)
    else:
        actions = rng.standard_normal((count, spec.head.n)).astype(np.float32)
    reference = Reference(spec, flat)
    wide = torch.tensor(_wide(obs))
    parts = reference.distributions(wide)
    log_probs = sum(part.log_prob(torch.tensor(_wide(actions))[:, k]) for k, part in enumerate(parts)).detach().numpy()
    values = reference.network("critic", wide)[:, 0].detach().numpy()

    def noisy(array: np.ndarray, scale: float) -> np.ndarray:
        return (array + scale * rng.standard_normal(count)).astype(np.float32)

    return Batch(
        obs,
        actions,
        noisy(log_probs, moved),
        noisy(values, moved),
        noisy(np.full(count, 0.4), 1.5),
        noisy(values, 1.0),
    )


SPECS = {
    "cartpole": MlpSpec(4, (64, 64), "tanh", Categorical((2,))),
    "relu": MlpSpec(4, (64, 64), "relu", Categorical((2,))),
    "odd": MlpSpec(5, (13, 37, 9), "tanh", Categorical((3, 1, 4))),
    "odd relu": MlpSpec(17, (33,), "relu", Gaussian(3)),
    "continuous": MlpSpec(3, (64, 64), "tanh", Gaussian(1)),
    "linear": MlpSpec(6, (), "tanh", Categorical((5,))),
    "linear gaussian": MlpSpec(1, (), "relu", Gaussian(2)),
    "wide": MlpSpec(40, (130,), "tanh", Categorical((19,))),
}
# One step of plain gradients: the first moment without momentum is the gradient.
PLAIN: dict[str, Any] = {"epochs": 1, "minibatches": 1, "adam_beta1": 0.0, "max_grad_norm": None}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Networks this small only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gradient_error(got: np.ndarray, expected: np.ndarray, spec: MlpSpec) -> float:
    """The largest difference, as a part of the largest number of the same layer's gradient."""
    mine, theirs = views(spec, got), views(spec, expected.astype(np.float32))
    return max(float(np.abs(mine[name] - theirs[name]).max() / (np.abs(theirs[name]).max() + 1e-6)) for name in mine)


def learned(kind: Any, spec: MlpSpec, config: Any, flat: np.ndarray, batch: Batch, **more: Any) -> tuple[Any, Any]:
    learner = kind(spec, config, flat, threads=2, **more)
    return learner, learner.learn(*batch.columns())


@pytest.mark.parametrize("count", [1000, 37, 2])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_gradients_of_ppo_are_those_of_torch(spec: MlpSpec, count: int) -> None:
    rng = np.random.default_rng(count)
    flat = some_parameters(spec, rng)
    batch = some_batch(spec, flat, count, rng)
    config = PpoConfig(**PLAIN, entropy_coef=0.03, value_clip=0.25, clip=0.2)
    learner, losses = learned(NativePpo, spec, config, flat, batch)
    reference = Reference(spec, flat)
    expected = reference.losses(batch, config)
    expected["loss"].backward()
    gradient = reference.flat(lambda weight: weight.grad)
    assert gradient_error(learner.state()["first_moments"], gradient, spec) < 1e-5
    for name in ("policy", "value", "entropy", "approx_kl"):
        assert getattr(losses, name) == pytest.approx(expected[name].item(), rel=2e-5, abs=2e-6), name
    assert losses.grad_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


@pytest.mark.parametrize("spec", [SPECS["cartpole"], SPECS["odd relu"]], ids=["categorical", "gaussian"])
@pytest.mark.parametrize(
    "options",
    [
        {"clip": None},
        {"clip": 0.05},
        {"value_clip": 0.05},
        {"value_coef": 0.0},
        {"value_coef": 3.0, "value_clip": None},
        {"entropy_coef": 0.5},
        {"normalise_advantages": False},
    ],
    ids=str,
)
def test_each_option_changes_the_gradient_as_in_torch(spec: MlpSpec, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    flat = some_parameters(spec, rng)
    batch = some_batch(spec, flat, 333, rng)
    config = PpoConfig(**PLAIN, **options)
    learner, _ = learned(NativePpo, spec, config, flat, batch)
    reference = Reference(spec, flat)
    reference.losses(batch, config)["loss"].backward()
    assert gradient_error(learner.state()["first_moments"], reference.flat(lambda w: w.grad), spec) < 1e-5


@pytest.mark.parametrize("spec", [SPECS["odd"], SPECS["continuous"]], ids=["categorical", "gaussian"])
@pytest.mark.parametrize("normalise", [False, True])
def test_gradients_of_a2c_are_those_of_torch(spec: MlpSpec, normalise: bool) -> None:
    rng = np.random.default_rng(4)
    flat = some_parameters(spec, rng)
    batch = some_batch(spec, flat, 160, rng)
    config = A2cConfig(normalise_advantages=normalise, entropy_coef=0.01, max_grad_norm=None, adam_beta1=0.0)
    learner, losses = learned(NativeA2c, spec, config, flat, batch)
    reference = Reference(spec, flat)
    expected = reference.losses(batch, config, ratio=False)
    expected["loss"].backward()
    assert gradient_error(learner.state()["first_moments"], reference.flat(lambda w: w.grad), spec) < 1e-5
    assert losses.policy == pytest.approx(expected["policy"].item(), rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 0.01])
def test_steps_are_those_of_torchs_adam(max_grad_norm: float | None) -> None:
    rng = np.random.default_rng(5)
    spec = MlpSpec(4, (32, 32), "tanh", Categorical((3,)))
    flat = some_parameters(spec, rng)
    batch = some_batch(spec, flat, 256, rng)
    config = PpoConfig(epochs=6, minibatches=1, learning_rate=1e-2, max_grad_norm=max_grad_norm, entropy_coef=0.01)
    learner, losses = learned(NativePpo, spec, config, flat, batch)
    reference = Reference(spec, flat)
    weights = list(reference.weights.values())
    adam = torch.optim.Adam(weights, lr=config.learning_rate, eps=config.adam_epsilon)
    norms = []
    for _ in range(config.epochs):
        adam.zero_grad()
        reference.losses(batch, config)["loss"].backward()
        norms.append(torch.nn.utils.clip_grad_norm_(weights, max_grad_norm or float("inf")).item())
        adam.step()
    np.testing.assert_allclose(learner.parameters, reference.flat(), atol=2e-5, rtol=1e-4)
    moved = np.abs(learner.parameters - flat).max()
    assert moved > 0.02
    assert losses.grad_norm == pytest.approx(np.mean(norms), rel=1e-4)
    assert losses.steps == config.epochs
    moments = np.concatenate([adam.state[weight]["exp_avg"].numpy().ravel() for weight in weights])
    assert gradient_error(learner.state()["first_moments"], moments, spec) < 1e-3


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_every_instruction_set_has_the_same_bits(isa: str) -> None:
    for spec in (SPECS["odd"], SPECS["odd relu"]):
        rng = np.random.default_rng(6)
        flat = some_parameters(spec, rng)
        batch = some_batch(spec, flat, 150, rng)
        states = []
        for which in (isa, "scalar"):
            learner = _native.Learner(*native_arguments(spec), 1, 2, which)
            parts = [flat.copy(), np.zeros_like(flat), np.zeros_like(flat)]
            learner.load(*parts, 0, 0)
            config = PpoConfig(epochs=2, minibatches=3, entropy_coef=0.02, value_clip=0.3)
            learner.update(*batch.columns(), **config.options(0.0))
            learner.save(*parts)
            states.append(b"".join(part.tobytes() for part in parts))
        assert states[0] == states[1]
