"""A trained policy as an ONNX model: a checkpoint in, one file out that takes raw observations, proved equal.

    PPO, A2C:  observation float32[batch, obs_size] -> action, logits, value
    DQN:       the same -> action, values
    SAC:       the same -> action

`action` is int64[batch] for one discrete action, int64[batch, k] for several, float32[batch, k] within its bounds for a
continuous one: the best, the most probable one, or the mean. Normalisation is part of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.extras import require
from headrace.errors import RejectedResult
from headrace.rl.graph import Graph
from headrace.rl.normalise import Normaliser
from headrace.rl.policy import Categorical, Floats, MlpSpec, Policy, views
from headrace.rl.saved import NativeGreedy, load_policy
from headrace.rl.spec import Box, EnvSpec

if TYPE_CHECKING:
    from headrace.rl.algorithms.replayed import ReplayedGreedy

__all__ = ["export_run", "to_onnx", "verify_onnx", "verify_replayed"]


def export_run(checkpoint: Path) -> bytes:
    """The policy of a training checkpoint, verified. Raises what `load_policy` does, and `RejectedResult` where the
    exported model computes something else."""
    policy: Any = load_policy(checkpoint)
    if isinstance(policy, NativeGreedy):
        parts = (policy.env_spec, policy.spec, policy.parameters, policy.normaliser)
        model = to_onnx(*parts)
        verify_onnx(model, *parts)
        return model
    content: bytes = policy.to_onnx()
    verify_replayed(content, policy)
    return content


def to_onnx(env: EnvSpec, spec: MlpSpec, parameters: Floats, normaliser: Normaliser) -> bytes:
    """A policy (float32[n_parameters(spec)]) and how observations are normalised, as one model."""
    graph = Graph(spec.obs_size, normaliser)
    layers = views(spec, parameters)
    activation = "Tanh" if spec.activation == "tanh" else "Relu"
    for network, out in (("actor", "logits"), ("critic", "values")):
        x = graph.seen
        for i in range(len(spec.hidden) + 1):
            name, last = f"{network}.{i}", i == len(spec.hidden)
            x = graph.linear(x, name, layers[f"{name}.weight"], layers[f"{name}.bias"], out if last else "")
            x = x if last else graph.node(activation, [x], f"{name}.out")
    graph.node("Squeeze", ["values", graph.constant("one", np.array([1], np.int64))], "value")
    outputs: dict[str, Any] = {
        "action": _action(env, spec, graph),
        "logits": (np.float32, ["batch", spec.head.n_outputs]),
        "value": (np.float32, ["batch"]),
    }
    return graph.model(env.id, outputs)


def verify_onnx(model: bytes, env: EnvSpec, spec: MlpSpec, parameters: Floats, normaliser: Normaliser) -> None:
    """Hold the model against the native policy on 1,000 observations. Raises `RejectedResult` where logits or values
    differ by more than 1e-5 (relative, of numbers above 1), or an action by more than rounding can explain."""
    observations = _observations(normaliser)
    action, logits, value = _run(model, ["action", "logits", "value"], observations)
    policy, seen = Policy(spec), normaliser(observations)
    for name, got, expected in zip(("logits", "value"), (logits, value), policy.forward(parameters, seen), strict=True):
        _hold(env, name, got, expected)
    chosen = policy.act(parameters, seen, greedy=True).actions
    if isinstance(env.action, Box):
        chosen = np.clip(chosen, env.action.low.ravel(), env.action.high.ravel())
    _hold_actions(env, action, chosen)


def verify_replayed(model: bytes, policy: ReplayedGreedy) -> None:
    """Hold the model of DQN or SAC against torch's network, as `verify_onnx` does against the native one."""
    env, observations = policy.env_spec, _observations(policy.normaliser)
    if isinstance(env.action, Box):
        (action,) = _run(model, ["action"], observations)
    else:
        action, values = _run(model, ["action", "values"], observations)
        _hold(env, "values", values, policy.values(observations))
    _hold_actions(env, action, policy.act(observations))


def _observations(normaliser: Normaliser) -> Floats:
    """1,000 of those that are to be expected, and some that are not."""
    rng = np.random.default_rng(0)
    deviation = 2 / np.maximum(normaliser.scale, 1e-6)
    return rng.normal(normaliser.mean, deviation, (1000, len(normaliser.mean))).astype(np.float32)


def _run(model: bytes, outputs: list[str], observations: Floats) -> Any:
    runtime: Any = require("onnxruntime", "onnx")
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(outputs, {"observation": observations})


def _hold(env: EnvSpec, name: str, got: Floats, expected: Floats) -> None:
    worst = float((np.abs(got - expected) / np.maximum(np.abs(expected), 1)).max())
    if not worst <= 1e-5:
        raise RejectedResult(f"{env.id}: {name} of the exported model are off by {worst:g}, more than 1e-5")


def _hold_actions(env: EnvSpec, got: Any, chosen: Any) -> None:
    if isinstance(env.action, Box):
        right = np.allclose(got, chosen, rtol=1e-5, atol=1e-5)
    else:
        right = np.mean(got.reshape(chosen.shape) == chosen) > 0.99  # where two logits are all but equal, either is
    if not right:
        raise RejectedResult(f"{env.id}: the exported model acts in another way than the policy")


def _action(env: EnvSpec, spec: MlpSpec, graph: Graph) -> tuple[Any, list[str | int]]:
    """Add the nodes that choose; returns the dtype and shape of `action`."""
    if isinstance(spec.head, Categorical):
        if len(spec.head.sizes) == 1:
            graph.node("ArgMax", ["logits"], "action", axis=1, keepdims=0)
            return np.int64, ["batch"]
        ends = np.cumsum(spec.head.sizes)
        parts = []
        for k, (end, size) in enumerate(zip(ends, spec.head.sizes, strict=True)):
            bounds = [
                graph.constant(f"{name}.{k}", np.array([at], np.int64))
                for name, at in (("from", end - size), ("to", end))
            ]
            axis = graph.constant(f"axis.{k}", np.array([1], np.int64))
            part = graph.node("Slice", ["logits", *bounds, axis], f"part.{k}")
            parts.append(graph.node("ArgMax", [part], f"action.{k}", axis=1, keepdims=1))
        graph.node("Concat", parts, "action", axis=1)
        return np.int64, ["batch", len(parts)]
    assert isinstance(env.action, Box)
    graph.node("Max", ["logits", graph.constant("action.low", env.action.low.ravel())], "bounded")
    graph.node("Min", ["bounded", graph.constant("action.high", env.action.high.ravel())], "action")
    return np.float32, ["batch", spec.head.n_outputs]
