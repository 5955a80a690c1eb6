"""Deep Q-learning (Mnih et al. 2015): minibatches of replayed steps in, a network that knows better what actions are
worth out. Double (van Hasselt et al. 2016), dueling, n-step and prioritised, each of which can be switched on.

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.rl.learners.dqn_settings import DqnConfig
from headrace.rl.learners.off_policy import Minibatch, ReplayLearner, Told
from headrace.rl.learners.settings import scheduled
from headrace.rl.networks.mlp import Activation, QNetwork, seeded

__all__ = ["DqnLearner", "DqnLoss", "dqn_loss", "dqn_targets"]


def dqn_targets(reward: Tensor, discount: Tensor, next_target: Tensor, next_online: Tensor | None = None) -> Tensor:
    """What the values of the actions taken should be, [n]: reward + discount * Q_target(next_obs, a*).

    a* is the action that `next_online` thinks best (double Q-learning), or without it `next_target` itself; both
    [n, n_actions], the values of the next observations.
    """
    best = (next_target if next_online is None else next_online).argmax(1, keepdim=True)
    return reward + discount * next_target.gather(1, best).squeeze(1)


class DqnLoss(NamedTuple):
    """`loss`: a number; `errors`: Q - target of each row; `chosen`: Q of the actions taken. [n] both."""

    loss: Tensor
    errors: Tensor
    chosen: Tensor


def dqn_loss(q: Tensor, action: Tensor, targets: Tensor, weights: Tensor) -> DqnLoss:
    """The weighted mean of Huber's loss: half of errors squared, linear from 1 on. q [n, n_actions], the rest [n]."""
    chosen = q.gather(1, action.unsqueeze(1)).squeeze(1)
    errors = chosen - targets
    size = errors.abs()
    inner = size.clamp(max=1.0)
    return DqnLoss((weights * (0.5 * inner.square() + size - inner)).mean(), errors, chosen)


class DqnLearner(ReplayLearner):
    """A network, its target and their optimiser. The same seed, the same first parameters."""

    name = "dqn"
    config: DqnConfig

    def __init__(
        self,
        obs_size: int,
        n_actions: int,
        config: DqnConfig,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        seed: int = 0,
    ) -> None:
        super().__init__(config)
        self.n_actions = n_actions
        with seeded(seed):
            self.network, self.target = (
                QNetwork(obs_size, n_actions, hidden, activation, dueling=config.dueling) for _ in range(2)
            )
        self.target.load_state_dict(self.network.state_dict())
        self.target.requires_grad_(False)
        self.networks = {"network": self.network, "target": self.target}
        self.optimisers = {"q": self._adam(list(self.network.parameters()), config.learning_rate)}

    @torch.no_grad()
    def greedy(self, obs: Tensor) -> npt.NDArray[Any]:
        """The actions thought best, int64[n], of observations float32[n, obs_size]."""
        best: npt.NDArray[Any] = self.network(obs).argmax(1).numpy()
        return best

    def random(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        """Any actions, int64[n]."""
        return rng.integers(0, self.n_actions, n)

    def explore(self, obs: Tensor, rng: np.random.Generator, steps: int) -> npt.NDArray[Any]:
        """The actions thought best, but for some of them any, as the schedule of epsilon has it after so many steps."""
        anything = self.random(len(obs), rng)
        return np.where(rng.random(len(obs)) < self.config.epsilon(steps), anything, self.greedy(obs))

    def update(self, rows: Minibatch, rng: np.random.Generator, progress: float = 0.0) -> Told:
        """Learn from a minibatch. `progress`: the part of the training that is done (0 … 1), which schedules go by.

        Raises `InvalidInput` for a loss or a gradient that is not finite, before anything has changed.
        """
        config = self.config
        with torch.no_grad():
            online = self.network(rows.next_obs) if config.double else None
            targets = dqn_targets(rows.reward, rows.discount, self.target(rows.next_obs), online)
        loss, errors, chosen = dqn_loss(self.network(rows.obs), rows.action, targets, rows.weights)
        rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        norm = self._descend("q", loss, rate)
        self.updates += 1
        self._follow("target", "network")
        told = {"q": loss.item(), "q_mean": chosen.mean().item(), "grad_norm": norm}
        return Told(told, errors.detach().abs().numpy())
