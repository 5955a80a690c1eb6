"""Policies as ONNX models: the same numbers from raw observations for every kind of action, as good at the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest

from headrace.errors import NotFound, RejectedResult
from headrace.rl.config import TrainConfig
from headrace.rl.envs import CompiledEnv
from headrace.rl.envs.plain import PlainEnv
from headrace.rl.export import export_run, to_onnx, verify_onnx
from headrace.rl.normalise import Moments, Normaliser
from headrace.rl.policy import Policy, initial, mlp_for
from headrace.rl.spec import Box, Discrete, EnvSpec, MultiDiscrete
from headrace.rl.train import train
from headrace.store.pull import pull_model
from headrace.store.versions import ModelStore

SPACES = [Discrete(3), MultiDiscrete((2, 5, 3)), Box(-0.1, 0.2, shape=(2,))]


def _policy(action: Any, hidden: tuple[int, ...], activation: Any) -> tuple[EnvSpec, Any, Any, Normaliser]:
    env = EnvSpec("test/Any-v0", Box(-np.inf, np.inf, shape=(5,)), action, 0, None)
    spec = mlp_for(env, hidden, activation)
    rng = np.random.default_rng(1)
    parameters = initial(spec, 2) + rng.normal(0, 0.3, len(initial(spec, 2))).astype(np.float32)
    moments = Moments.zeros(5)
    moments.update(rng.normal(3, 7, (100, 5)))
    return env, spec, parameters, Normaliser.of(moments)


@pytest.mark.parametrize("action", SPACES, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize(("hidden", "activation"), [((64, 64), "tanh"), ((7,), "relu"), ((), "tanh")])
def test_the_model_is_the_policy(action: Any, hidden: tuple[int, ...], activation: str) -> None:
    env, spec, parameters, normaliser = _policy(action, hidden, activation)
    model = to_onnx(env, spec, parameters, normaliser)
    verify_onnx(model, env, spec, parameters, normaliser)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    observations = np.random.default_rng(0).normal(3, 70, (33, 5)).astype(np.float32)  # many beyond the limit
    chosen, logits, value = session.run(["action", "logits", "value"], {"observation": observations})
    policy, seen = Policy(spec), normaliser(observations)
    expected = policy.forward(parameters, seen)
    np.testing.assert_allclose(logits, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(value, expected[1], rtol=1e-5, atol=1e-5)
    acted = policy.act(parameters, seen, greedy=True).actions
    if isinstance(action, Box):
        acted = acted.clip(action.low, action.high)
        np.testing.assert_allclose(chosen, acted, rtol=1e-5, atol=1e-5)
        assert chosen.min() >= np.float32(-0.1)
    else:
        np.testing.assert_array_equal(chosen.reshape(acted.shape), acted)


def test_another_policy_is_rejected() -> None:
    env, spec, parameters, normaliser = _policy(Discrete(3), (8,), "tanh")
    model = to_onnx(env, spec, parameters * np.float32(1.001), normaliser)
    with pytest.raises(RejectedResult, match="logits of the exported model are off by"):
        verify_onnx(model, env, spec, parameters, normaliser)


def test_a_published_run_still_solves_its_task(tmp_path: Path, cartpole: CompiledEnv) -> None:
    run, repository = tmp_path / "run", ModelStore(tmp_path / "models")
    assert train(msgspec.convert({"env": "headrace/CartPole-v1"}, TrainConfig), run).solved
    file = tmp_path / "policy.onnx"
    file.write_bytes(export_run(run / "best.ckpt"))
    pulled = pull_model(repository, str(file), name="cartpole")
    assert pulled.is_current
    (served,) = (repository.root / "cartpole" / pulled.version).glob("*.onnx")
    session = onnxruntime.InferenceSession(served, providers=["CPUExecutionProvider"])
    env = PlainEnv(cartpole.definition, seed=123)
    obs, total, over = env.reset(), 0.0, False
    while not over:
        (action,) = session.run(["action"], {"observation": obs[None]})[0]
        obs, reward, terminated, truncated = env.step(action)
        total, over = total + reward, terminated or truncated
    assert total >= 475


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    from headrace.cli.publish import command

    with pytest.raises(NotFound, match=r"there is no best\.ckpt or last\.ckpt"):
        command(tmp_path, "x")
