"""The native policy against torch; its vector of parameters, and weights on their way."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from headrace import _native
from headrace.errors import ConfigError, InvalidInput
from headrace.rl.policy import Categorical, Gaussian, MlpSpec, Policy, Weights, initial, mlp_for, n_parameters, views
from headrace.rl.spec import Box, Discrete, EnvSpec, MultiDiscrete

torch = pytest.importorskip("torch")

SPECS = [
    MlpSpec(4),
    MlpSpec(17, (33, 70), "relu", Categorical((3, 2, 5))),
    MlpSpec(3, (256, 256), "tanh", Gaussian(6)),
    MlpSpec(5, (), "tanh", Categorical((4,))),
]


def random_parameters(spec: MlpSpec, seed: int = 0) -> np.ndarray:
    """Larger than `initial` gives, so that units saturate and logits differ."""
    rng = np.random.default_rng(seed)
    return (initial(spec, seed) + rng.normal(scale=0.1, size=n_parameters(spec))).astype(np.float32)


def by_torch(spec: MlpSpec, flat: np.ndarray, observations: np.ndarray, network: str):
    named = views(spec, flat)
    x = torch.from_numpy(observations)
    for layer in range(len(spec.hidden) + 1):
        weight, bias = (torch.from_numpy(named[f"{network}.{layer}.{part}"]) for part in ("weight", "bias"))
        x = torch.nn.functional.linear(x, weight, bias)
        if layer < len(spec.hidden):
            x = torch.tanh(x) if spec.activation == "tanh" else torch.relu(x)
    return x


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("isa", _native.supported_isas())
def test_logits_and_values_are_torchs(spec: MlpSpec, isa: str) -> None:
    flat = random_parameters(spec)
    observations = np.random.default_rng(1).normal(size=(100, spec.obs_size)).astype(np.float32)
    logits, values = Policy(spec, isa=isa).forward(flat, observations)
    np.testing.assert_allclose(logits, by_torch(spec, flat, observations, "actor"), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(values, by_torch(spec, flat, observations, "critic")[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_log_probs_are_torchs(spec: MlpSpec) -> None:
    flat = random_parameters(spec)
    observations = np.random.default_rng(2).normal(size=(300, spec.obs_size)).astype(np.float32)
    for greedy in (False, True):
        decision = Policy(spec).act(flat, observations, seed=3, step=9, greedy=greedy)
        logits, actions = by_torch(spec, flat, observations, "actor"), torch.from_numpy(decision.actions)
        if isinstance(spec.head, Gaussian):
            deviation = torch.from_numpy(views(spec, flat)["log_std"]).exp()
            wanted = torch.distributions.Normal(logits, deviation).log_prob(actions).sum(dim=1)
            if greedy:
                np.testing.assert_allclose(decision.actions, logits, atol=1e-5)
        else:
            parts = logits.split(list(spec.head.sizes), dim=1)
            wanted = sum(
                torch.distributions.Categorical(logits=part).log_prob(actions[:, k]) for k, part in enumerate(parts)
            )
            if greedy:
                assert (actions == torch.stack([part.argmax(dim=1) for part in parts], dim=1)).all()
        np.testing.assert_allclose(decision.log_probs, wanted, atol=2e-5)


def test_actions_depend_on_what_they_are_drawn_for_alone() -> None:
    spec = MlpSpec(3, (8,), "tanh", Categorical((50,)))
    policy, flat = Policy(spec), initial(spec, 0)
    observations = np.ones((90, 3), np.float32)
    whole = policy.act(flat, observations, seed=1, step=4)
    part = policy.act(flat, observations[:5], seed=1, step=4, first_env=70)
    assert (part.actions == whole.actions[70:75]).all()
    for other in (policy.act(flat, observations, seed=2, step=4), policy.act(flat, observations, seed=1, step=5)):
        assert (other.actions == whole.actions).mean() < 0.2
    assert len(np.unique(whole.actions)) > 20


def test_the_vector_lies_as_the_contract_says() -> None:
    spec = MlpSpec(3, (5, 4), head=Gaussian(2))
    flat = np.arange(n_parameters(spec), dtype=np.float32)
    named = views(spec, flat)
    assert list(named) == [
        *(f"actor.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")),
        "log_std",
        *(f"critic.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")),
    ]
    assert np.concatenate([view.ravel() for view in named.values()]).tolist() == flat.tolist()
    assert {name: view.shape for name, view in named.items() if "weight" in name} == {
        "actor.0.weight": (5, 3), "actor.1.weight": (4, 5), "actor.2.weight": (2, 4),
        "critic.0.weight": (5, 3), "critic.1.weight": (4, 5), "critic.2.weight": (1, 4),
    }  # fmt: skip
    named["critic.2.bias"][0] = -1
    assert flat[-1] == -1
    assert Policy(spec)._native.n_parameters == len(flat)


def test_fresh_parameters_are_orthogonal() -> None:
    spec = MlpSpec(4, (64, 32), head=Gaussian(2))
    named = views(spec, initial(spec, 7))
    for name, gain in (("actor.0.weight", math.sqrt(2)), ("actor.1.weight", math.sqrt(2)), ("actor.2.weight", 0.01),
                       ("critic.2.weight", 1)):  # fmt: skip
        weight = named[name].astype(np.float64)
        short = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(short, gain**2 * np.eye(len(short)), atol=1e-5)
    assert not any(view.any() for name, view in named.items() if "weight" not in name)
    assert (initial(spec, 7) == initial(spec, 7)).all()
    assert (initial(spec, 8) != initial(spec, 7)).any()


def test_the_policy_fits_the_environment() -> None:
    box = Box(-1, 1, shape=(2, 3))
    assert mlp_for(EnvSpec("a", box, Discrete(4))) == MlpSpec(6, (64, 64), "tanh", Categorical((4,)))
    assert mlp_for(EnvSpec("a", box, MultiDiscrete((3, 2))), (8,)).head == Categorical((3, 2))
    assert mlp_for(EnvSpec("a", box, box), activation="relu") == MlpSpec(6, (64, 64), "relu", Gaussian(6))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MlpSpec(0),
        lambda: MlpSpec(4, (8, 0)),
        lambda: MlpSpec(4, activation="gelu"),
        lambda: Categorical(()),
        lambda: Categorical((2, 0)),
        lambda: Gaussian(0),
        lambda: views(MlpSpec(4), np.zeros(5, np.float32)),
        lambda: views(MlpSpec(4), np.zeros(9155)),
        lambda: views(MlpSpec(4), np.zeros(2 * 9155, np.float32)[::2]),
        lambda: Policy(MlpSpec(4)).forward(np.zeros(9155, np.float32), np.zeros((2, 5), np.float32)),
        lambda: Policy(MlpSpec(4)).forward(np.zeros(9155, np.float32), np.zeros((2, 4))),
        lambda: Policy(MlpSpec(4)).act(np.zeros(9154, np.float32), np.zeros((2, 4), np.float32)),
        lambda: Weights(np.zeros(3, np.float32)).publish(np.zeros(4, np.float32)),
    ],
)
def test_what_does_not_fit_is_refused(make) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ConfigError):
        Policy(MlpSpec(4), isa="mmx")


def test_weights_are_read_as_they_were_published() -> None:
    weights = Weights(np.zeros(1000, np.float32))
    assert weights.version == 1
    assert len(weights) == 1000
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        out = np.empty(1000, np.float32)
        while not done.is_set():
            flat, version = weights.read(out)
            if (flat != flat[0]).any() or flat[0] != version - 1:
                torn.append(version)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 300):
        assert weights.publish(np.full(1000, number, np.float32)) == number + 1
    done.set()
    reader.join()
    assert torn == []
    assert weights.read()[0][0] == 299
