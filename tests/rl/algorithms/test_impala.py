"""IMPALA: what it computes, and actors that run by themselves, end together and tell what ended them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import ConfigError, StageFailed
from headrace.rl.algorithms.impala import Impala
from headrace.rl.algorithms.make import make_algorithm
from headrace.rl.config import load_config
from headrace.rl.envs import make_env
from headrace.rl.learners.impala import ImpalaConfig, NativeImpala, log_probs_of
from headrace.rl.policy import Categorical, Floats, Gaussian, MlpSpec, Policy, Weights, initial, views
from headrace.rl.returns import Steps, vtrace
from headrace.rl.rollout import Collector
from headrace.rl.saved import load_policy
from headrace.rl.show import judge
from headrace.rl.train import Report, Trainer, train


def _update_for_ever(algorithm: Impala) -> None:
    while True:
        algorithm.update(0.0)


def _actors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("actor-")]


@pytest.mark.parametrize("head", [Categorical((3, 2)), Gaussian(2)])
def test_log_probabilities_are_those_of_whoever_drew(head: Categorical | Gaussian) -> None:
    spec = MlpSpec(4, (8,), "tanh", head)
    parameters = initial(spec, 3)
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    policy = Policy(spec)
    drawn = policy.act(parameters, obs, seed=1)
    logits, _ = policy.forward(parameters, obs)
    np.testing.assert_allclose(log_probs_of(spec, parameters, logits, drawn.actions), drawn.log_probs, atol=2e-6)


def test_an_update_is_that_of_torch_in_float64() -> None:
    env = make_env("headrace/CartPole-v1")
    spec = MlpSpec(4, (8,), "tanh", Categorical((2,)))
    collector = Collector(env, spec, n_envs=16, n_steps=20, seed=0, threads=1, normalise_obs=False)
    trajectory = collector.collect(Weights(initial(spec, 1)))  # an older policy than the learner's
    config = ImpalaConfig(learning_rate=1e-2, max_grad_norm=None, entropy_coef=0.03, clip_rho=0.9, clip_c=0.8)
    learner = NativeImpala(spec, config, initial(spec, 2), threads=1)
    flat = torch.tensor(learner.parameters.astype(np.float64), requires_grad=True)
    losses = learner.update(trajectory)

    def network(name: str) -> torch.Tensor:
        x, at = torch.tensor(trajectory.obs.astype(np.float64)), 0
        for layer, shape in _shapes(spec, initial(spec, 2)).items():
            size = int(np.prod(shape))
            if layer.startswith(name):
                part = flat[at : at + size].reshape(shape)
                if layer.endswith("weight"):
                    x = x @ part.T
                else:
                    x = torch.tanh(x + part) if layer.split(".")[1] == "0" else x + part
            at += size
        return x

    log_probs = torch.log_softmax(network("actor"), -1)
    values = network("critic")[..., 0]
    chosen = log_probs.gather(-1, torch.tensor(trajectory.actions.astype(np.int64)))[..., 0]
    steps = Steps(
        trajectory.rewards, values.detach().numpy().astype(np.float32), trajectory.terminated, trajectory.truncated,
        trajectory.final_values, trajectory.last_values,
    )  # fmt: skip
    log_rhos = (chosen.detach().numpy() - trajectory.log_probs).astype(np.float32)
    assert np.abs(log_rhos).max() > 0.01
    targets, advantages = vtrace(steps, log_rhos, config.gamma, clip_rho=0.9, clip_c=0.8, clip_pg_rho=0.9, native=False)
    policy = -(chosen * torch.tensor(advantages)).mean()
    value = 0.5 * ((values - torch.tensor(targets)) ** 2).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    assert losses.policy == pytest.approx(policy.item(), abs=2e-5)
    assert losses.value == pytest.approx(value.item(), rel=1e-4)
    assert losses.entropy == pytest.approx(entropy.item(), abs=1e-5)
    (policy + 0.5 * value - 0.03 * entropy).backward()
    assert losses.grad_norm == pytest.approx(flat.grad.norm().item(), rel=1e-4)


def _shapes(spec: MlpSpec, parameters: Floats) -> dict[str, Any]:
    return {name: view.shape for name, view in views(spec, parameters).items()}


def test_it_learns_with_policies_that_lag(tmp_path: Path) -> None:
    lags: list[int] = []

    def watch(report: Report) -> None:
        lags.append(report.lag)

    config = load_config(None, ["eval_every=20", "target_return=400"], env="headrace/CartPole-v1", algo="impala")
    result = train(config, tmp_path / "run", watch=watch)
    assert result.solved
    assert 0 < max(lags) <= config.learner.queue + 2 * config.learner.actors
    assert min(lags) >= 0
    assert not _actors()
    assert judge(load_policy(tmp_path / "run"), 20, 1).mean_return >= 300
    again = Trainer(config)
    again.load(tmp_path / "run" / "last.ckpt")
    assert again.update().steps == result.steps + 32 * 32
    again.close()
    assert not _actors()


def test_an_actor_that_fails_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["n_envs=4", "n_steps=8"], env="headrace/CartPole-v1", algo="impala")
    algorithm = make_algorithm(config)
    assert isinstance(algorithm, Impala)
    algorithm._collectors[1].collect = lambda *args, **kwargs: 1 / 0  # type: ignore[method-assign]
    try:
        with pytest.raises(StageFailed, match="'actor 1': ZeroDivisionError"):
            _update_for_ever(algorithm)
    finally:
        algorithm.close()
    assert not _actors()


def test_worker_processes_can_be_the_actors() -> None:
    changes = ["n_envs=4", "n_steps=16", "workers=1", "impala.actors=2"]
    algorithm = make_algorithm(load_config(None, changes, env="CartPole-v1", algo="impala"))
    try:
        updates = [algorithm.update(0.0) for _ in range(6)]
        assert {update.steps for update in updates} == {2 * 16}
        assert algorithm.evaluate(4, 0).episodes == 4
    finally:
        algorithm.close()
    assert not _actors()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("normalise_obs=true", "normalise_obs: expected false"),
        ("n_envs=1", "one for each of 2 actors"),
        ("impala.queue=0", "ImpalaConfig.queue"),
        ("impala.clip_c=0", "ImpalaConfig.clip_c"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_algorithm(load_config(None, [change], env="headrace/CartPole-v1", algo="impala"))
