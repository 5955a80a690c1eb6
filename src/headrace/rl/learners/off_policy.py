"""What learners from replayed steps share: their settings, minibatches, and their state as arrays and back.

Importing this module imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.errors import InvalidInput
from headrace.rl.learners.replay_settings import ReplayConfig

__all__ = ["Minibatch", "ReplayLearner", "Told"]


class Minibatch(NamedTuple):
    """n replayed steps (or chains of steps), as `headrace.rl.buffers.NStep` makes them: what is to be learnt is
    reward + discount * V(next_obs).

    `obs`, `next_obs` float32[n, D] as the networks take them; `action` int64[n], or float32[n, K] in -1 … 1; `reward`,
    `discount` (0 where the episode terminated) float32[n]; `weights` float32[n], by which losses are multiplied.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Told:
    """What an update says: numbers by name, and the size of each row's error (float32[n]), its priority from now on."""

    losses: dict[str, float]
    errors: npt.NDArray[np.float32]


class ReplayLearner:
    """What `DqnLearner` and `SacLearner` share. Subclasses fill `networks` and `optimisers`; one call at a time."""

    name: ClassVar[str]

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self.networks: dict[str, nn.Module] = {}
        self.optimisers: dict[str, torch.optim.Adam] = {}
        self.updates = 0

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def _adam(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, learning_rate, eps=self.config.adam_epsilon, fused=True)

    def _descend(self, name: str, loss: Tensor, learning_rate: float) -> float:
        """One step of the optimiser `name`, and of nobody else's parameters; the norm of its gradients.

        Raises `InvalidInput` for a loss or a gradient that is not finite, before anything has changed.
        """
        optimiser = self.optimisers[name]
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        gradients = torch.autograd.grad(loss, parameters)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        for what, number in ((f"loss/{name}", loss.item()), (f"the gradient of loss/{name}", norm)):
            if not math.isfinite(number):
                raise InvalidInput(f"{self.name}: {what} is {number} in update {self.updates + 1}")
        limit = self.config.max_grad_norm
        scale = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if scale == 1.0 else gradient * scale
        for group in optimiser.param_groups:
            group["lr"] = learning_rate
        optimiser.step()
        return norm

    @torch.no_grad()
    def _follow(self, target: str, source: str) -> None:
        """Where it is time for that, let the network `target` follow `source`: target += tau (source - target)."""
        if self.updates % self.config.target_every:
            return
        pairs = zip(self.networks[target].parameters(), self.networks[source].parameters(), strict=True)
        for behind, ahead in pairs:
            behind.lerp_(ahead, self.config.tau)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that `load` needs to go on bit by bit: parameters, moments of Adam, the number of updates; copies."""
        state: dict[str, npt.NDArray[Any]] = {"updates": np.array(self.updates)}
        for name, network in self.networks.items():
            state |= {f"{name}.{key}": _array(value) for key, value in network.state_dict().items()}
        for name, optimiser in self.optimisers.items():
            for i, parts in optimiser.state_dict()["state"].items():
                state |= {f"adam.{name}.{i}.{key}": _array(value) for key, value in parts.items()}
        return state

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a `state()` of the same settings. Raises `InvalidInput`, with nothing changed, for one that lacks
        a part, has one too many, does not fit, or holds a number that is not finite."""
        wanted = {name: network.state_dict() for name, network in self.networks.items()}
        moments = self._moments(state)
        known = {"updates"} | {f"{name}.{key}" for name, parts in wanted.items() for key in parts}
        known |= {f"adam.{name}.{i}.{key}" for name, rows in moments.items() for i in rows for key in rows[i]}
        if set(state) != known:
            odd = ", ".join(sorted(set(state) ^ known))
            raise InvalidInput(f"{self.name} state: has not the parts expected: {odd}")
        for name, parts in wanted.items():
            for key, own in parts.items():
                parts[key] = _tensor(f"{self.name} state: {name}.{key}", state[f"{name}.{key}"], own)
        for name, network in self.networks.items():
            network.load_state_dict(wanted[name])
        for name, optimiser in self.optimisers.items():
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": moments[name], "param_groups": groups})
        self.updates = int(state["updates"])

    def _moments(self, state: Mapping[str, npt.NDArray[Any]]) -> dict[str, dict[int, dict[str, Tensor]]]:
        """Adam's by optimiser and number of the parameter; none for one that has not stepped yet."""
        found: dict[str, dict[int, dict[str, Tensor]]] = {}
        for name, optimiser in self.optimisers.items():
            rows = found[name] = {}
            if not any(key.startswith(f"adam.{name}.") for key in state):
                continue
            parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
            for i, parameter in enumerate(parameters):
                rows[i] = {}
                for key, own in (("step", torch.zeros(())), ("exp_avg", parameter), ("exp_avg_sq", parameter)):
                    whole = f"adam.{name}.{i}.{key}"
                    if whole not in state:
                        raise InvalidInput(f"{self.name} state: lacks {whole}")
                    rows[i][key] = _tensor(f"{self.name} state: {whole}", state[whole], own)
        return found


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    copy: npt.NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return copy


def _tensor(name: str, array: npt.NDArray[Any], like: Tensor) -> Tensor:
    if array.dtype != np.float32 or array.shape != tuple(like.shape):
        raise InvalidInput(f"{name}: expected float32{list(like.shape)}, got {array.dtype}{list(array.shape)}")
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name}: holds a number that is not finite")
    return torch.from_numpy(np.array(array))
