"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): minibatches of replayed steps in, a better actor out; two
critics, a squashed Gaussian, a temperature that keeps its entropy.

Importing this module imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.rl.learners.off_policy import Minibatch, ReplayLearner, Told
from headrace.rl.learners.sac_settings import SacConfig
from headrace.rl.learners.settings import scheduled
from headrace.rl.networks.mlp import Activation, SquashedGaussian, TwinCritic, seeded

__all__ = ["SacLearner", "Temperature", "actor_loss", "critic_loss", "sac_targets", "temperature_loss"]


def sac_targets(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, temperature: Tensor | float
) -> Tensor:
    """What the critics should say, [n]: reward + discount * (min Q_target - temperature * log pi), the last two of the
    actor's own action at the next observation; next_q [2, n]."""
    return reward + discount * (next_q.amin(0) - temperature * next_log_prob)


def critic_loss(q: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The weighted means of half the squared errors of both critics [2, n], added up."""
    return 0.5 * (weights * (q - targets).square()).mean(1).sum()


def actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor | float) -> Tensor:
    """mean(temperature * log pi - min Q), of actions that the actor draws; q [2, n]."""
    return (temperature * log_prob - q.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """-log_temperature * mean(log pi + target_entropy): its gradient raises the temperature as long as the entropy is
    too small. Source: Haarnoja et al. 2018, section 5, with the logarithm for the temperature as in their code."""
    return -log_temperature * (log_prob.detach() + target_entropy).mean()


class Temperature(nn.Module):
    """One number, by its logarithm."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(first)))

    def forward(self) -> Tensor:
        return self.log.exp()


class SacLearner(ReplayLearner):
    """An actor, two critics, their targets, a temperature, and what moves them. The same seed, the same parameters.

    Actions are float32[n, action_size] in -1 … 1; what they stand for is the caller's business.
    """

    name = "sac"
    config: SacConfig

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        config: SacConfig,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        seed: int = 0,
    ) -> None:
        super().__init__(config)
        self.action_size = action_size
        self.target_entropy = -float(action_size) if config.target_entropy is None else config.target_entropy
        with seeded(seed):
            self.actor = SquashedGaussian(obs_size, action_size, hidden, activation)
            self.critics, self.targets = (TwinCritic(obs_size, action_size, hidden, activation) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.temperature = Temperature(config.first_temperature)
        self.networks = {
            "actor": self.actor,
            "critics": self.critics,
            "targets": self.targets,
            "temperature": self.temperature,
        }
        rates = {
            "actor": config.actor_learning_rate,
            "critics": config.learning_rate,
            "temperature": config.temperature_learning_rate,
        }
        self.optimisers = {
            name: self._adam(list(self.networks[name].parameters()), rate) for name, rate in rates.items()
        }
        self._rates = rates

    @torch.no_grad()
    def greedy(self, obs: Tensor) -> npt.NDArray[Any]:
        """The actor's most certain actions, for observations float32[n, obs_size]."""
        actions: npt.NDArray[Any] = self.actor.greedy(obs).numpy()
        return actions

    def random(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        """Any actions, each number with equal chance."""
        return rng.uniform(-1.0, 1.0, (n, self.action_size)).astype(np.float32)

    @torch.no_grad()
    def explore(self, obs: Tensor, rng: np.random.Generator, steps: int) -> npt.NDArray[Any]:
        """Actions drawn from the actor."""
        actions: npt.NDArray[Any] = self.actor.draw(obs, self._noise(len(obs), rng))[0].numpy()
        return actions

    def update(self, rows: Minibatch, rng: np.random.Generator, progress: float = 0.0) -> Told:
        """Learn from a minibatch: critics, actor, temperature, targets. `progress` as for `DqnLearner.update`.

        Raises `InvalidInput` for a loss or a gradient that is not finite, before what it moves has changed.
        """
        config, n = self.config, len(rows.obs)
        rate = {name: scheduled(its, config.learning_rate_schedule, progress) for name, its in self._rates.items()}
        temperature = self.temperature().item() if config.temperature is None else config.temperature
        with torch.no_grad():
            action, log_prob = self.actor.draw(rows.next_obs, self._noise(n, rng))
            next_q = self.targets(rows.next_obs, action)
            targets = sac_targets(rows.reward, rows.discount, next_q, log_prob, temperature)
        q = self.critics(rows.obs, rows.action)
        loss = critic_loss(q, targets, rows.weights)
        norm = self._descend("critics", loss, rate["critics"])
        action, log_prob = self.actor.draw(rows.obs, self._noise(n, rng))
        acting = actor_loss(self.critics(rows.obs, action), log_prob, temperature)
        self._descend("actor", acting, rate["actor"])
        if config.temperature is None:
            self._descend(
                "temperature",
                temperature_loss(self.temperature.log, log_prob, self.target_entropy),
                rate["temperature"],
            )
        self.updates += 1
        self._follow("targets", "critics")
        told = {
            "critics": loss.item(),
            "actor": acting.item(),
            "q_mean": q.mean().item(),
            "entropy": -log_prob.mean().item(),
            "temperature": temperature,
            "grad_norm": norm,
        }
        return Told(told, (q.detach() - targets).abs().mean(0).numpy())

    def _noise(self, n: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.standard_normal((n, self.action_size), np.float32))
