"""DQN's arithmetic against loops over rows and autograd in float64, and what its learner promises beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, InvalidInput
from headrace.rl.learners.dqn import DqnLearner, dqn_loss, dqn_targets
from headrace.rl.learners.dqn_settings import DqnConfig
from headrace.rl.learners.off_policy import Minibatch
from headrace.rl.networks.mlp import QNetwork

RNG = np.random.default_rng(0)  # what DQN's update draws: nothing


def minibatch(n: int = 32, obs_size: int = 3, n_actions: int = 4, seed: int = 0) -> Minibatch:
    rng = np.random.default_rng(seed)
    columns = (rng.normal(size=(n, obs_size)), rng.normal(size=n) * 2, rng.normal(size=(n, obs_size)))
    obs, reward, next_obs = (torch.from_numpy(column.astype(np.float32)) for column in columns)
    discount = torch.from_numpy(np.where(rng.random(n) < 0.3, 0, 0.9**3).astype(np.float32))
    weights = torch.from_numpy(rng.random(n).astype(np.float32))
    return Minibatch(obs, torch.from_numpy(rng.integers(0, n_actions, n)), reward, next_obs, discount, weights)


def learner(seed: int = 1, **settings: Any) -> DqnLearner:
    return DqnLearner(3, 4, DqnConfig(**settings), hidden=(16, 8), activation="tanh", seed=seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), st.booleans(), st.integers(0, 1000))
def test_targets_are_those_of_a_loop_over_rows(n: int, n_actions: int, double: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, online = rng.normal(size=(2, n, n_actions))
    reward, discount = rng.normal(size=(2, n))
    got = dqn_targets(
        *(torch.from_numpy(x) for x in (reward, discount, target)), torch.from_numpy(online) if double else None
    )
    for i in range(n):
        best = max(range(n_actions), key=lambda a: online[i, a]) if double else None
        value = max(target[i]) if best is None else target[i, best]
        assert got[i].item() == pytest.approx(reward[i] + discount[i] * value, abs=1e-12)


def test_the_loss_is_hubers_weighted() -> None:
    rows = minibatch()
    q = torch.randn(32, 4, dtype=torch.float64) * 2
    targets = torch.randn(32, dtype=torch.float64)
    loss, errors, chosen = dqn_loss(q, rows.action, targets, rows.weights.double())
    wanted = 0.0
    for i in range(32):
        error = float(q[i, rows.action[i]] - targets[i])
        wanted += float(rows.weights[i]) * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5) / 32
        assert errors[i].item() == pytest.approx(error)
        assert chosen[i].item() == q[i, rows.action[i]].item()
    assert loss.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_are_those_of_float64(double: bool, dueling: bool) -> None:
    one, rows = learner(double=double, dueling=dueling, max_grad_norm=None), minibatch()
    with torch.no_grad():  # a target that differs from the network
        for parameter in one.target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    network, target = (QNetwork(3, 4, (16, 8), "tanh", dueling=dueling).double() for _ in range(2))
    network.load_state_dict(one.network.state_dict())
    target.load_state_dict(one.target.state_dict())
    obs, reward, next_obs, discount, weights = (
        getattr(rows, name).double() for name in ("obs", "reward", "next_obs", "discount", "weights")
    )
    best = (network if double else target)(next_obs).argmax(1)
    wanted = (reward + discount * target(next_obs)[range(32), best]).detach()
    losses = torch.nn.functional.huber_loss(network(obs)[range(32), rows.action], wanted, reduction="none")
    (weights * losses).mean().backward()
    told = one.update(rows, RNG)
    for own, right in zip(one.network.parameters(), network.parameters(), strict=True):
        assert own.grad is not None
        assert right.grad is not None
        torch.testing.assert_close(own.grad.double(), right.grad, rtol=1e-4, atol=1e-6)
    norm = torch.stack([p.grad.square().sum() for p in network.parameters() if p.grad is not None]).sum().sqrt()
    assert told.losses["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    q = network(obs)[range(32), rows.action]
    np.testing.assert_allclose(told.errors, (q - wanted).detach().abs().numpy(), rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_together() -> None:
    free, held = learner(max_grad_norm=None), learner(max_grad_norm=0.01)
    norm = free.update(minibatch(), RNG).losses["grad_norm"]
    held.update(minibatch(), RNG)
    for own, other in zip(held.network.parameters(), free.network.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad, other.grad * (0.01 / norm), rtol=1e-3, atol=1e-9)


def test_a_dueling_network_adds_advantages_of_mean_0() -> None:
    network = QNetwork(3, 4, (8,), "relu", dueling=True)
    obs = torch.randn(5, 3)
    assert network.value is not None
    torch.testing.assert_close(network(obs).mean(1, keepdim=True), network.value(network.body(obs)))


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_follows_when_it_is_time(tau: float) -> None:
    one = learner(target_every=3, tau=tau)
    first = [parameter.clone() for parameter in one.target.parameters()]
    for update in range(1, 4):
        one.update(minibatch(seed=update), RNG)
        rate = tau if update == 3 else 0.0
        for before, now, ahead in zip(first, one.target.parameters(), one.network.parameters(), strict=True):
            torch.testing.assert_close(now, before + rate * (ahead - before))


def test_exploration_goes_by_its_schedule() -> None:
    one = learner(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100)
    obs = torch.randn(4000, 3)
    greedy = one.greedy(obs)
    for steps, epsilon in ((0, 0.8), (50, 0.5), (100, 0.2), (1000, 0.2)):
        differ = np.mean(one.explore(obs, np.random.default_rng(1), steps) != greedy)
        assert differ == pytest.approx(epsilon * 3 / 4, abs=0.03)  # a random one is the greedy one in a quarter


@pytest.mark.parametrize("what", ["reward", "obs", "weights"])
def test_a_loss_that_is_no_number_changes_nothing(what: str) -> None:
    one, rows = learner(), minibatch()
    one.update(rows, RNG)
    before = one.state()
    getattr(rows, what)[3] = float("nan")
    with pytest.raises(InvalidInput, match=r"dqn: .*loss/q is nan in update 2"):
        one.update(rows, RNG)
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_going_on_gives_the_same_bits() -> None:
    one, other = learner(learning_rate_schedule="linear"), learner(seed=5, learning_rate_schedule="linear")
    for update in range(4):
        if update == 2:
            other.load(one.state())
        one.update(minibatch(seed=update), RNG, update / 4)
        if update >= 2:
            other.update(minibatch(seed=update), RNG, update / 4)
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, other.state()[name])


def test_a_state_that_does_not_fit_is_refused_by_name() -> None:
    one = learner()
    one.update(minibatch(), RNG)
    good = one.state()
    bias = good["network.body.0.bias"]
    for changes, message in (
        ({"network.body.0.bias": bias[:3]}, r"network\.body\.0\.bias: expected float32\[16\], got float32\[3\]"),
        ({"network.body.0.bias": bias.astype(np.float64)}, r"expected float32\[16\], got float64\[16\]"),
        ({"network.body.0.bias": bias * np.float32("nan")}, r"body\.0\.bias: holds a number that is not finite"),
        ({"adam.q.2.exp_avg": bias * np.float32("inf")}, r"adam\.q\.2\.exp_avg: expected float32\[8, 16\]"),
        ({"network.value.weight": bias}, r"parts expected: network\.value\.weight"),
        ({"adam.q.1.step": None}, r"lacks adam\.q\.1\.step"),
        ({"target.advantage.bias": None}, r"parts expected: target\.advantage\.bias"),
    ):
        changed: dict[str, Any] = {**good, **changes}
        with pytest.raises(InvalidInput, match=message):
            one.load({name: array for name, array in changed.items() if array is not None})
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, good[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.5}, r"DqnConfig\.gamma: expected a number of at least 0 and at most 1, got 1\.5"),
        ({"n_step": 0}, r"DqnConfig\.n_step: expected a whole number of at least 1"),
        ({"tau": 0.0}, r"DqnConfig\.tau: expected a number above 0"),
        ({"double": "yes"}, r"DqnConfig\.double: expected true or false, got 'yes'"),
        ({"prioritised": 1}, r"DqnConfig\.prioritised: expected true or false, got 1"),
        ({"epsilon_end": -0.1}, r"DqnConfig\.epsilon_end"),
        ({"epsilon_steps": 0}, r"DqnConfig\.epsilon_steps"),
        ({"replay": 10}, r"DqnConfig\.replay: expected at least a minibatch of 64 rows, got 10"),
        ({"learning_rate": float("nan")}, r"DqnConfig\.learning_rate"),
        ({"learning_rate_schedule": "up"}, r"DqnConfig\.learning_rate_schedule"),
    ],
)
def test_settings_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DqnConfig(**changes)


def test_the_same_seed_makes_the_same_network_and_leaves_torch_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, same, other = learner(7), learner(7), learner(8)
    assert torch.rand(1) == expected
    name = "network.body.0.weight"
    np.testing.assert_array_equal(one.state()[name], same.state()[name])
    assert not np.array_equal(one.state()[name], other.state()[name])
