"""What DQN and SAC have learnt: a checkpoint in, a policy and its ONNX graph out.

Importing this module imports torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headrace.errors import InvalidInput
from headrace.rl.algorithms.off_policy import env_actions, make_learner
from headrace.rl.checkpoint import Checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.graph import Graph
from headrace.rl.learners.dqn import DqnLearner
from headrace.rl.normalise import Moments, Normaliser
from headrace.rl.policy import Floats
from headrace.rl.spec import Box, EnvSpec

__all__ = ["ReplayedGreedy"]


class ReplayedGreedy:
    """The actions that the network of a checkpoint thinks best."""

    def __init__(self, found: Checkpoint, config: TrainConfig, env: EnvSpec) -> None:
        self.env_spec, self.config = env, config
        self.learner = make_learner(config, env)
        kept = {name[8:]: array for name, array in found.arrays.items() if name.startswith("learner.")}
        self.learner.load(kept)
        count, mean, m2 = (found.arrays[f"obs_{name}"] for name in ("count", "mean", "m2"))
        normalises = config.normalise_obs and count[0] > 0
        moments = Moments(float(count[0]) if normalises else 0.0, mean, m2)
        self.normaliser = Normaliser.of(moments, limit=10.0 if normalises else float("inf"))

    def reset(self, n: int) -> None:
        pass

    def act(self, obs: Floats, begins: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[Any]:
        actions = env_actions(self.env_spec, self.learner.greedy(self._seen(obs)))
        return actions.reshape(self.env_spec.actions_shape(len(obs)))

    def values(self, obs: Floats) -> Floats:
        """What DQN thinks the actions are worth, float32[n, n_actions], for raw observations."""
        assert isinstance(self.learner, DqnLearner)
        with torch.no_grad():
            q: Floats = self.learner.network(self._seen(obs)).numpy()
        return q

    def _seen(self, obs: Floats) -> torch.Tensor:
        if obs.dtype != np.float32 or obs.ndim != 2 or obs.shape[1] != self.env_spec.obs_size:
            raise InvalidInput(
                f"observations: expected float32[n, {self.env_spec.obs_size}], got {obs.dtype}{list(obs.shape)}"
            )
        return torch.from_numpy(self.normaliser(obs))

    def to_onnx(self) -> bytes:
        """observation -> `action`, and DQN's `values`, float32[batch, n_actions]."""
        graph = Graph(self.env_spec.obs_size, self.normaliser)
        learner = self.learner
        if isinstance(learner, DqnLearner):
            features = _layers(graph, graph.seen, "body", learner.network.body)
            dueling = learner.network.value
            values = _linear(graph, features, "advantage", learner.network.advantage, "" if dueling else "values")
            if dueling is not None:
                mean = graph.node("ReduceMean", [values], "mean_advantage", axes=[1])
                centred = graph.node("Sub", [values, mean], "centred_advantage")
                graph.node("Add", [centred, _linear(graph, features, "value", dueling)], "values")
            graph.node("ArgMax", ["values"], "action", axis=1, keepdims=0)
            outputs: dict[str, Any] = {
                "action": (np.int64, ["batch"]),
                "values": (np.float32, ["batch", learner.n_actions]),
            }
            return graph.model(self.env_spec.id, outputs)
        both = _layers(graph, graph.seen, "body", learner.actor.body)
        bounds = [graph.constant(name, np.array([at])) for name, at in (("from", 0), ("to", learner.action_size))]
        mean = graph.node("Slice", [both, *bounds, graph.constant("axis", np.array([1]))], "action_mean")
        squashed = graph.node("Tanh", [mean], "squashed")
        space = self.env_spec.action
        assert isinstance(space, Box)
        low, high = space.low.ravel(), space.high.ravel()
        up = graph.node("Add", [squashed, graph.constant("one", np.float32(1))], "from_0_to_2")
        part = graph.node("Mul", [up, graph.constant("half_width", 0.5 * (high - low))], "above_low")
        inside = graph.node("Add", [part, graph.constant("action.low", low)], "unbounded")
        least = graph.node("Max", [inside, "action.low"], "bounded")
        graph.node("Min", [least, graph.constant("action.high", high)], "action")
        return graph.model(self.env_spec.id, {"action": (np.float32, ["batch", learner.action_size])})


def _layers(graph: Graph, x: str, name: str, layers: nn.Sequential) -> str:
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            x = _linear(graph, x, f"{name}.{i}", layer)
        else:
            x = graph.node("Tanh" if isinstance(layer, nn.Tanh) else "Relu", [x], f"{name}.{i}")
    return x


def _linear(graph: Graph, x: str, name: str, layer: nn.Linear, output: str = "") -> str:
    weight, bias = (parameter.detach().numpy() for parameter in (layer.weight, layer.bias))
    return graph.linear(x, name, weight, bias, output)
