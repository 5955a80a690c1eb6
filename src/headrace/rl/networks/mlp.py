"""Perceptrons for learners that replay: float32 observations in; values of actions, or actions and densities, out.

Hidden layers are relu or tanh; parameters begin as those of torch's `Linear`, from a seed of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Activation", "QNetwork", "SquashedGaussian", "TwinCritic", "mlp", "seeded", "squashed_log_prob"]

Activation: TypeAlias = Literal["tanh", "relu"]

_LOG_STD = (-20.0, 2.0)
"""Bounds of the logarithm of a deviation. Source: Haarnoja et al. 2018, their code."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What torch draws inside follows from `seed`; what it draws afterwards does not know of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def mlp(sizes: Sequence[int], activation: Activation, *, last: bool = False) -> nn.Sequential:
    """Linear layers from `sizes[0]` to `sizes[-1]` numbers, with the activation between them (and, with `last`, at the
    end)."""
    layers: list[nn.Module] = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(n_in, n_out))
        if last or i < len(sizes) - 2:
            layers.append(nn.Tanh() if activation == "tanh" else nn.ReLU())
    return nn.Sequential(*layers)


class QNetwork(nn.Module):
    """Values of discrete actions: float32[n, obs_size] -> float32[n, n_actions].

    `dueling`: Q = V + A - mean(A), with one layer for V and one for A on the hidden ones (Wang et al. 2016, eq. 9).
    """

    def __init__(
        self, obs_size: int, n_actions: int, hidden: Sequence[int], activation: Activation, *, dueling: bool = False
    ) -> None:
        super().__init__()
        self.body = mlp([obs_size, *hidden], activation, last=True)
        width = [obs_size, *hidden][-1]
        self.advantage = nn.Linear(width, n_actions)
        self.value = nn.Linear(width, 1) if dueling else None

    def forward(self, obs: Tensor) -> Tensor:
        features = self.body(obs)
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(1, keepdim=True)


class SquashedGaussian(nn.Module):
    """An actor whose actions are tanh of a Gaussian: float32[n, obs_size] -> mean and logarithm of the deviation before
    tanh, float32[n, action_size] each."""

    def __init__(self, obs_size: int, action_size: int, hidden: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.body = mlp([obs_size, *hidden, 2 * action_size], activation)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(obs).chunk(2, dim=1)
        return mean, log_std.clamp(*_LOG_STD)

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in -1 … 1 for `noise` (standard normal, of the actions' shape), and their log densities [n]."""
        mean, log_std = self(obs)
        before = mean + log_std.exp() * noise
        return torch.tanh(before), squashed_log_prob(before, noise, log_std)

    def greedy(self, obs: Tensor) -> Tensor:
        """tanh of the mean."""
        mean, _ = self(obs)
        return torch.tanh(mean)


def squashed_log_prob(before: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """The log density [n] of tanh(before), where before = mean + exp(log_std) * noise; [n, k] each.

    log N(noise) - log_std - log(1 - tanh(before)^2), the last term as 2 (log 2 - u - softplus(-2 u)), which does not
    lose its digits where tanh is all but 1. Source: Haarnoja et al. 2018, appendix C.
    """
    normal = -0.5 * noise.square() - 0.5 * math.log(2 * math.pi) - log_std
    squash = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return (normal - squash).sum(1)


class TwinCritic(nn.Module):
    """Two critics of the same shape side by side: observations [n, obs_size] and actions [n, action_size] -> [2, n].

    Each layer of both is one batched product: fewer calls than two networks take.
    """

    def __init__(self, obs_size: int, action_size: int, hidden: Sequence[int], activation: Activation) -> None:
        super().__init__()
        sizes = [obs_size + action_size, *hidden, 1]
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(_uniform((2, n_in, n_out), n_in) for n_in, n_out in pairs)
        self.biases = nn.ParameterList(_uniform((2, 1, n_out), n_in) for n_in, n_out in pairs)
        self.activation = torch.tanh if activation == "tanh" else torch.relu

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat((obs, action), 1).expand(2, -1, -1)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x if i == last else self.activation(x)
        return x.squeeze(2)


def _uniform(shape: tuple[int, ...], n_in: int) -> nn.Parameter:
    bound = 1.0 / math.sqrt(n_in)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
