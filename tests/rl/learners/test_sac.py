"""SAC's arithmetic against loops, quadrature, torch's distributions and autograd in float64; and what it promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions, nn

from headrace.errors import ConfigError, InvalidInput
from headrace.rl.learners.off_policy import Minibatch
from headrace.rl.learners.sac import SacLearner, actor_loss, critic_loss, sac_targets, temperature_loss
from headrace.rl.learners.sac_settings import SacConfig
from headrace.rl.networks.mlp import TwinCritic, squashed_log_prob


def minibatch(n: int = 32, seed: int = 0) -> Minibatch:
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(n, 3)),
        "action": rng.uniform(-1, 1, (n, 2)),
        "reward": rng.normal(size=n),
        "next_obs": rng.normal(size=(n, 3)),
        "discount": np.where(rng.random(n) < 0.3, 0, 0.98),
        "weights": rng.random(n),
    }
    return Minibatch(**{name: torch.from_numpy(column.astype(np.float32)) for name, column in columns.items()})


def learner(seed: int = 1, **settings: Any) -> SacLearner:
    return SacLearner(3, 2, SacConfig(**settings), hidden=(16, 8), activation="tanh", seed=seed)


def test_the_density_of_squashed_actions_is_that_of_torch() -> None:
    mean, log_std, noise = torch.randn(3, 50, 2, dtype=torch.float64) * 0.7
    before = mean + log_std.exp() * noise
    right = distributions.TransformedDistribution(
        distributions.Normal(mean, log_std.exp()), distributions.TanhTransform(cache_size=1)
    )
    torch.testing.assert_close(squashed_log_prob(before, noise, log_std), right.log_prob(torch.tanh(before)).sum(1))


def test_the_density_of_squashed_actions_adds_up_to_1() -> None:
    mean, std = 0.4, 0.8
    actions = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 100_000 - 1
    before = torch.atanh(actions)[:, None]
    log_std = torch.full_like(before, math.log(std))
    density = squashed_log_prob(before, (before - mean) / std, log_std).exp()
    assert density.sum().item() / 100_000 == pytest.approx(1.0, abs=1e-6)


def test_the_density_stays_finite_where_tanh_is_all_but_1() -> None:
    before = torch.tensor([[-60.0], [60.0]], requires_grad=True)
    log_prob = squashed_log_prob(before, torch.zeros(2, 1), torch.zeros(2, 1))
    log_prob.sum().backward()
    assert log_prob.tolist() == pytest.approx([2 * 60 - 2 * math.log(2) - 0.5 * math.log(2 * math.pi)] * 2)
    assert before.grad is not None
    assert before.grad.ravel().tolist() == pytest.approx([-2.0, 2.0])


def test_targets_and_losses_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(2)
    next_q, q = rng.normal(size=(2, 2, 9))
    reward, discount, log_prob, weights = rng.normal(size=(4, 9))
    tensors = [torch.from_numpy(x) for x in (reward, discount, next_q, log_prob)]
    targets = sac_targets(*tensors, 0.3)
    critics = acting = 0.0
    for i in range(9):
        wanted = reward[i] + discount[i] * (min(next_q[:, i]) - 0.3 * log_prob[i])
        assert targets[i].item() == pytest.approx(wanted, abs=1e-12)
        critics += sum(0.5 * weights[i] * (q[k, i] - wanted) ** 2 for k in (0, 1)) / 9
        acting += (0.3 * log_prob[i] - min(q[:, i])) / 9
    assert critic_loss(torch.from_numpy(q), targets, torch.from_numpy(weights)).item() == pytest.approx(critics)
    assert actor_loss(torch.from_numpy(q), tensors[3], 0.3).item() == pytest.approx(acting)


def test_the_temperature_moves_towards_the_entropy_wanted() -> None:
    log_prob = torch.tensor([0.5, 1.5], dtype=torch.float64)  # an entropy of about -1
    for target, sign in ((-0.5, -1), (-2.0, 1)):  # more is wanted: gradient descent raises it
        log = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        temperature_loss(log, log_prob, target).backward()
        assert log.grad is not None
        assert log.grad.item() == pytest.approx(-(1.0 + target))
        assert math.copysign(1, log.grad.item()) == sign
    one = learner(target_entropy=100.0)
    before = one.temperature().item()
    one.update(minibatch(), np.random.default_rng(0))
    assert one.temperature().item() > before


class Reference:
    """The networks of a learner in float64, written with plain layers and torch's distributions."""

    def __init__(self, one: SacLearner) -> None:
        self.actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        self.actor.load_state_dict({key[5:]: value for key, value in one.actor.state_dict().items()})
        self.critics, self.targets = self._pair(one.critics), self._pair(one.targets)

    def _pair(self, twin: TwinCritic) -> list[nn.Sequential]:
        pair = []
        for k in (0, 1):
            made = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)).double()
            for layer, weight, bias in zip(made[::2], twin.weights, twin.biases, strict=True):
                layer.weight.data, layer.bias.data = weight[k].data.T.double(), bias[k, 0].data.double()
            pair.append(made)
        return pair

    def draw(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.actor(obs)
        normal = distributions.Normal(out[:, :2], out[:, 2:].exp())
        before = normal.loc + normal.scale * noise
        squashed = distributions.TransformedDistribution(normal, distributions.TanhTransform(cache_size=1))
        action = squashed.transforms[0](before)
        return action, squashed.log_prob(action).sum(1)

    @staticmethod
    def q(pair: list[nn.Sequential], obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.stack([one(torch.cat((obs, action), 1)).squeeze(1) for one in pair])


def test_gradients_are_those_of_float64() -> None:
    # Critics that all but stand still, so that the actor's loss is of the same ones before and after they have learnt.
    one, rows = learner(learning_rate=0.0, first_temperature=0.4), minibatch()
    with torch.no_grad():
        for parameter in one.targets.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    right = Reference(one)
    rng = np.random.default_rng(4)
    noises = [torch.from_numpy(rng.standard_normal((32, 2), np.float32)).double() for _ in range(2)]
    obs, action, reward, next_obs, discount, weights = (column.double() for column in rows)
    with torch.no_grad():
        next_action, next_log_prob = right.draw(next_obs, noises[0])
        smaller = right.q(right.targets, next_obs, next_action).min(0).values
        wanted = reward + discount * (smaller - 0.4 * next_log_prob)
    losses = [(0.5 * weights * (q - wanted) ** 2).mean() for q in right.q(right.critics, obs, action)]
    (losses[0] + losses[1]).backward()
    critics = [parameter.grad.clone() for pair in right.critics for parameter in pair.parameters()]
    drawn, log_prob = right.draw(obs, noises[1])
    acting = (0.4 * log_prob - right.q(right.critics, obs, drawn).min(0).values).mean()
    acting.backward()

    told = one.update(rows, np.random.default_rng(4))
    assert told.losses["critics"] == pytest.approx(sum(loss.item() for loss in losses), rel=1e-5)
    assert told.losses["actor"] == pytest.approx(acting.item(), rel=1e-4, abs=1e-6)
    own = [
        parameter.grad[k].T if len(parameter.shape) == 3 and parameter.shape[1] > 1 else parameter.grad[k].reshape(-1)
        for k in (0, 1)
        for pair in zip(one.critics.weights, one.critics.biases, strict=True)
        for parameter in pair
    ]
    for got, expected in zip(own, critics, strict=True):
        torch.testing.assert_close(got.double().reshape(expected.shape), expected, rtol=1e-4, atol=1e-6)
    for mine, its in zip(one.actor.parameters(), right.actor.parameters(), strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        torch.testing.assert_close(mine.grad.double(), its.grad, rtol=1e-3, atol=1e-6)
    assert one.temperature.log.grad is not None
    assert one.temperature.log.grad.item() == pytest.approx(-(log_prob.mean().item() - 2.0), rel=1e-4)


def test_the_targets_follow_slowly() -> None:
    one = learner(tau=0.1)
    before = [parameter.clone() for parameter in one.targets.parameters()]
    one.update(minibatch(), np.random.default_rng(0))
    for was, now, ahead in zip(before, one.targets.parameters(), one.critics.parameters(), strict=True):
        torch.testing.assert_close(now, was + 0.1 * (ahead - was))


def test_a_temperature_that_is_given_stays() -> None:
    one = learner(temperature=0.2)
    assert one.update(minibatch(), np.random.default_rng(0)).losses["temperature"] == 0.2
    assert one.temperature().item() == 1.0


def test_actions_are_drawn_within_their_bounds_and_greedy_ones_are_not() -> None:
    one, obs = learner(), torch.randn(500, 3)
    for actions in (one.random(500, np.random.default_rng(0)), one.explore(obs, np.random.default_rng(0), 0)):
        assert actions.shape == (500, 2)
        assert actions.dtype == np.float32
        assert np.abs(actions).max() <= 1
        assert actions.std() > 0.3
    np.testing.assert_array_equal(one.greedy(obs), one.greedy(obs))


@pytest.mark.parametrize(("what", "loss"), [("reward", "critics"), ("obs", "critics"), ("next_obs", "critics")])
def test_a_loss_that_is_no_number_changes_nothing(what: str, loss: str) -> None:
    one, rows = learner(), minibatch()
    before = one.state()
    getattr(rows, what)[3] = float("inf")
    with pytest.raises(InvalidInput, match=rf"sac: loss/{loss} is (nan|inf) in update 1"):
        one.update(rows, np.random.default_rng(0))
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_going_on_gives_the_same_bits() -> None:
    one, other = learner(), learner(seed=5)
    for update in range(4):
        if update == 2:
            other.load(one.state())
        for each in (one, other) if update >= 2 else (one,):
            each.update(minibatch(seed=update), np.random.default_rng(update))
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, other.state()[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1.0}, r"SacConfig\.temperature: expected a number of at least 0, got -1\.0"),
        ({"first_temperature": 0.0}, r"SacConfig\.first_temperature: expected a number above 0"),
        ({"target_entropy": float("nan")}, r"SacConfig\.target_entropy"),
        ({"batch": 1.5}, r"SacConfig\.batch: expected a whole number of at least 1, got 1\.5"),
    ],
)
def test_settings_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SacConfig(**changes)
