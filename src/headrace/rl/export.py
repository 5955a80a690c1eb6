"""A trained policy as an ONNX model: a checkpoint in, one file out that takes raw observations, proved equal.

    observation float32[batch, obs_size] -> action, logits, value

`action` is int64[batch] for one discrete action, int64[batch, k] for several, float32[batch, k] within its bounds for a
continuous one: the most probable one, or the mean. Normalisation is part of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.extras import require
from headrace.errors import RejectedResult
from headrace.rl.checkpoint import load_checkpoint
from headrace.rl.config import load_config
from headrace.rl.envs import make_env
from headrace.rl.normalise import Moments, Normaliser
from headrace.rl.policy import Categorical, Floats, MlpSpec, Policy, mlp_for, views
from headrace.rl.spec import Box, EnvSpec

__all__ = ["export_run", "to_onnx", "verify_onnx"]

OPSET = 17


def export_run(checkpoint: Path) -> bytes:
    """The policy of a training checkpoint, verified. Raises `LoadFailed` and `IntegrityError` as `load_checkpoint`
    does, `RejectedResult` where the exported model computes something else."""
    found = load_checkpoint(checkpoint)
    settings = found.facts["config"]
    config = load_config(None, **settings)
    env = make_env(config.env).spec
    spec = mlp_for(env, hidden=tuple(config.hidden), activation=config.activation)
    parameters = found.arrays["learner.parameters"]
    count, mean, m2 = (found.arrays[f"collector.obs_{name}"] for name in ("count", "mean", "m2"))
    moments = Moments(float(count[0]) if config.normalise_obs else 0.0, mean, m2)
    normaliser = Normaliser.of(moments, limit=10.0 if config.normalise_obs else float("inf"))
    model = to_onnx(env, spec, parameters, normaliser)
    verify_onnx(model, env, spec, parameters, normaliser)
    return model


def to_onnx(env: EnvSpec, spec: MlpSpec, parameters: Floats, normaliser: Normaliser) -> bytes:
    """A policy (float32[n_parameters(spec)]) and how observations are normalised, as one model."""
    onnx: Any = require("onnx", "rl")
    helper, kinds = onnx.helper, onnx.TensorProto
    constants: list[Any] = []
    nodes: list[Any] = []

    def constant(name: str, value: Any) -> str:
        constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    centred = node("Sub", ["observation", constant("mean", normaliser.mean)], "centred")
    seen = node("Mul", [centred, constant("scale", normaliser.scale)], "scaled")
    if np.isfinite(normaliser.limit):
        limits = [constant(name, np.float32(sign * normaliser.limit)) for name, sign in (("low", -1), ("high", 1))]
        seen = node("Clip", [seen, *limits], "seen")
    layers = views(spec, parameters)
    activation = "Tanh" if spec.activation == "tanh" else "Relu"
    for network, out in (("actor", "logits"), ("critic", "values")):
        x = seen
        for i in range(len(spec.hidden) + 1):
            weights = [
                constant(f"{network}.{i}.{part}", layers[f"{network}.{i}.{part}"]) for part in ("weight", "bias")
            ]
            last = i == len(spec.hidden)
            x = node("Gemm", [x, *weights], out if last else f"{network}.{i}", transB=1)
            x = x if last else node(activation, [x], f"{network}.{i}.out")
    node("Squeeze", ["values", constant("one", np.array([1], np.int64))], "value")
    action = _action(env, spec, node, constant)
    shape = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        env.id,
        [shape("observation", kinds.FLOAT, ["batch", spec.obs_size])],
        [
            shape("action", *action(kinds)),
            shape("logits", kinds.FLOAT, ["batch", spec.head.n_outputs]),
            shape("value", kinds.FLOAT, ["batch"]),
        ],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


def verify_onnx(model: bytes, env: EnvSpec, spec: MlpSpec, parameters: Floats, normaliser: Normaliser) -> None:
    """Hold the model against the native policy on 1,000 observations. Raises `RejectedResult` where logits or values
    differ by more than 1e-5 (relative, of numbers above 1), or an action by more than rounding can explain."""
    runtime: Any = require("onnxruntime", "onnx")
    rng = np.random.default_rng(0)
    observations = rng.normal(normaliser.mean, 2 / np.maximum(normaliser.scale, 1e-6), (1000, spec.obs_size))
    observations = observations.astype(np.float32)
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    action, logits, value = session.run(["action", "logits", "value"], {"observation": observations})
    policy, seen = Policy(spec), normaliser(observations)
    for name, got, expected in zip(("logits", "value"), (logits, value), policy.forward(parameters, seen), strict=True):
        worst = float((np.abs(got - expected) / np.maximum(np.abs(expected), 1)).max())
        if not worst <= 1e-5:
            raise RejectedResult(f"{env.id}: {name} of the exported model are off by {worst:g}, more than 1e-5")
    chosen = policy.act(parameters, seen, greedy=True).actions
    if isinstance(env.action, Box):
        chosen = np.clip(chosen, env.action.low.ravel(), env.action.high.ravel())
        right = np.allclose(action, chosen, rtol=1e-5, atol=1e-5)
    else:
        right = np.mean(action.reshape(chosen.shape) == chosen) > 0.99  # where two logits are all but equal, either is
    if not right:
        raise RejectedResult(f"{env.id}: the exported model acts in another way than the policy")


def _action(env: EnvSpec, spec: MlpSpec, node: Any, constant: Any) -> Any:
    """Add the nodes that choose; returns what gives the type and shape of `action`."""
    if isinstance(spec.head, Categorical):
        if len(spec.head.sizes) == 1:
            node("ArgMax", ["logits"], "action", axis=1, keepdims=0)
            return lambda kinds: (kinds.INT64, ["batch"])
        ends = np.cumsum(spec.head.sizes)
        parts = []
        for k, (end, size) in enumerate(zip(ends, spec.head.sizes, strict=True)):
            bounds = [
                constant(f"{name}.{k}", np.array([at], np.int64)) for name, at in (("from", end - size), ("to", end))
            ]
            part = node("Slice", ["logits", *bounds, constant(f"axis.{k}", np.array([1], np.int64))], f"part.{k}")
            parts.append(node("ArgMax", [part], f"action.{k}", axis=1, keepdims=1))
        node("Concat", parts, "action", axis=1)
        return lambda kinds: (kinds.INT64, ["batch", len(parts)])
    assert isinstance(env.action, Box)
    node("Max", ["logits", constant("action.low", env.action.low.ravel())], "bounded")
    node("Min", ["bounded", constant("action.high", env.action.high.ravel())], "action")
    return lambda kinds: (kinds.FLOAT, ["batch", spec.head.n_outputs])
