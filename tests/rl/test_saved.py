"""Trained policies come back from their checkpoints as good as they were, and go out as models that act alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest

from headrace.errors import InvalidInput, LoadFailed, NotFound, RejectedResult
from headrace.rl.algorithms.make import make_source
from headrace.rl.algorithms.places import find_place
from headrace.rl.algorithms.play import play
from headrace.rl.checkpoint import Checkpoint, save_checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.evaluate import EVALUATION_SEED
from headrace.rl.export import export_run, verify_replayed
from headrace.rl.saved import load_policy
from headrace.rl.spec import Box, Discrete, EnvSpec, MultiDiscrete
from headrace.rl.spec_facts import facts_of, spec_of
from headrace.rl.train import Trainer

RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("headrace/CartPole-v1", "ppo", {}),
    ("headrace/Pendulum-v1", "a2c", {"normalise_obs": False}),
    ("headrace/IdentityMulti-v0", "ppo", {}),
    ("headrace/CartPole-v1", "dqn", {"normalise_obs": False, "dqn": {"learning_starts": 64, "dueling": True}}),
    ("headrace/FourRooms-v0", "dqn", {"dqn": {"learning_starts": 64}, "hidden": [], "activation": "relu"}),
    ("headrace/Pendulum-v1", "sac", {"sac": {"learning_starts": 64, "batch": 16, "train_every": 8}}),
    ("CartPole-v1", "dqn", {"dqn": {"learning_starts": 64}, "workers": 1}),
]
IDS = [f"{env.split('/')[-1]}-{algo}" for env, algo, _ in RUNS]


@pytest.fixture(scope="module", params=RUNS, ids=IDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trainer, Path]]:
    """A run that has learnt a little, and its folder."""
    env, algo, changes = request.param
    settings = {"n_envs": 4, "n_steps": 64, "threads": 1, "target_return": 1e9, **changes}
    config = msgspec.convert({"env": env, "algo": algo, **settings}, TrainConfig)
    trainer = Trainer(config, tmp_path_factory.mktemp("run"))
    for _ in range(2):
        trainer.update()
    trainer.save("best.ckpt")
    assert trainer.folder is not None
    yield trainer, trainer.folder
    trainer.close()


def test_a_saved_policy_plays_as_it_did_in_training(run: tuple[Trainer, Path]) -> None:
    trainer, folder = run
    policy = load_policy(folder)
    assert policy.config == trainer.config
    assert facts_of(policy.env_spec) == facts_of(trainer.algorithm.env_spec)
    source = make_source(policy.config, find_place(policy.config.env), 4)
    policy.reset(source.n_envs)
    shape = (policy.env_spec.action.shape) or ()
    again = play(source, lambda obs: policy.act(obs).reshape(-1, *shape), 4, EVALUATION_SEED)
    expected = trainer.algorithm.evaluate(4, 0)
    np.testing.assert_allclose(again.returns, expected.returns, rtol=1e-5)
    np.testing.assert_array_equal(again.lengths, expected.lengths)
    source.close()


def test_the_exported_model_acts_alike(run: tuple[Trainer, Path]) -> None:
    _, folder = run
    session = onnxruntime.InferenceSession(export_run(folder / "best.ckpt"), providers=["CPUExecutionProvider"])
    policy = load_policy(folder / "best.ckpt")
    observations = np.random.default_rng(5).normal(0, 3, (200, policy.env_spec.obs_size)).astype(np.float32)
    (action,) = session.run(["action"], {"observation": observations})
    expected = policy.act(observations)
    assert action.shape == expected.shape == policy.env_spec.actions_shape(200)
    if isinstance(policy.env_spec.action, Box):
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
        assert (np.abs(action) <= policy.env_spec.action.high).all()
    else:
        assert np.mean(action == expected) > 0.99


def test_observations_of_another_shape_or_dtype_are_refused(run: tuple[Trainer, Path]) -> None:
    policy = load_policy(run[1])
    size = policy.env_spec.obs_size
    for wrong in (np.zeros((2, size + 1), np.float32), np.zeros((2, size)), np.zeros(size, np.float32)):
        with pytest.raises(InvalidInput, match=rf"observations: expected float32\[n, {size}\]"):
            policy.act(wrong)


def test_a_model_of_another_policy_is_rejected(tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1):
        config = msgspec.convert({"env": "headrace/CartPole-v1", "algo": "dqn", "seed": seed, "n_envs": 4}, TrainConfig)
        trainer = Trainer(config, tmp_path / str(seed))
        assert trainer.folder is not None
        trainer.folder.mkdir()
        trainer.save("best.ckpt")
        folders.append(trainer.folder)
        trainer.close()
    with pytest.raises(RejectedResult, match="values of the exported model are off by"):
        verify_replayed(export_run(folders[0] / "best.ckpt"), load_policy(folders[1]))  # type: ignore[arg-type]


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no best\.ckpt or last\.ckpt"):
        load_policy(tmp_path)
    with pytest.raises(NotFound, match="no such run or checkpoint"):
        load_policy(tmp_path / "none.ckpt")
    save_checkpoint(tmp_path / "poem.ckpt", Checkpoint({}, {"kind": "poem"}))
    with pytest.raises(LoadFailed, match=r"poem\.ckpt: expected a checkpoint of training, it is of 'poem'"):
        load_policy(tmp_path / "poem.ckpt")


@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((2, 5)), Box([-1, -2], [1, 2])])
def test_facts_of_an_environment_come_back(action: Any) -> None:
    spec = EnvSpec("x/Y-v0", Box(-math.inf, math.inf, shape=(2, 3)), action, 100, None)
    assert spec_of(facts_of(spec)) == spec
    with pytest.raises(LoadFailed, match="cannot be read"):
        spec_of({**facts_of(spec), "action": {}})
