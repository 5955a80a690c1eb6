"""Whole runs of every way to learn: by name, in processes too, from a folder on, and by the recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from headrace.errors import ConfigError, NotFound, Unavailable
from headrace.rl.algorithms.places import find_place
from headrace.rl.checkpoint import load_checkpoint
from headrace.rl.config import TrainConfig, load_config
from headrace.rl.envs import CompiledEnv
from headrace.rl.envs.cartpole import CartPole
from headrace.rl.train import Report, Trainer, train

QUICK = {"total_steps": 1024, "n_envs": 4, "n_steps": 64, "threads": 1, "eval_every": 2, "eval_episodes": 4}
LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 1, "minibatches": 2},
    "a2c": {},
    "dqn": {"learning_starts": 100},
    "sac": {"learning_starts": 100, "batch": 32, "train_every": 8},
}


def _config(env: str, algo: str, **changes: Any) -> TrainConfig:
    return msgspec.convert(
        {"env": env, "algo": algo, algo: LEARNERS[algo], **QUICK, "target_return": 1e9, **changes}, TrainConfig
    )


@pytest.mark.parametrize(
    ("env", "algo"), [("CartPole-v1", "ppo"), ("CartPole-v1", "dqn"), ("Pendulum-v1", "a2c"), ("Pendulum-v1", "sac")]
)
def test_environments_of_gymnasium_run_in_processes(env: str, algo: str, tmp_path: Path) -> None:
    config, reports = _config(env, algo, workers=2), list[Report]()
    result = train(config, tmp_path, watch=reports.append)
    assert result.steps == 1024
    assert [report.eval_return is not None for report in reports] == [False, True, False, True]
    assert reports[-1].episodes > 0
    longer = msgspec.structs.replace(config, total_steps=1536)
    assert train(longer, tmp_path, resume=True).steps == 1536


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_a_folder_has_all_that_going_on_takes(algo: str, tmp_path: Path) -> None:
    env = {"dqn": "headrace/CartPole-v1", "sac": "headrace/Pendulum-v1"}[algo]
    config = _config(env, algo, n_steps=32)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(config, whole)
    train(msgspec.structs.replace(config, total_steps=512), halves)
    assert [path.name for path in halves.glob("*.replay")] == ["last-4.replay"]
    train(config, halves, resume=True)
    assert [path.name for path in halves.glob("*.replay")] == ["last-8.replay"]
    one, other = (load_checkpoint(folder / "last.ckpt") for folder in (whole, halves))
    assert one.facts["rng"] == other.facts["rng"]
    assert set(one.arrays) == set(other.arrays)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)
    assert (whole / "last-8.replay").read_bytes() == (halves / "last-8.replay").read_bytes()


def test_a_memory_that_is_gone_is_told(tmp_path: Path) -> None:
    config = _config("headrace/CartPole-v1", "dqn")
    train(config, tmp_path)
    with pytest.raises(ConfigError, match=r"best\.ckpt: goes without the memory"):
        Trainer(config).load(tmp_path / "best.ckpt")
    (tmp_path / "last-4.replay").unlink()
    with pytest.raises(NotFound, match=r"last-4\.replay: no such file"):
        Trainer(config).load(tmp_path / "last.ckpt")


def test_a_full_disk_leaves_the_memory_and_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config("headrace/CartPole-v1", "dqn")
    trainer = Trainer(config, tmp_path)
    trainer.update()
    trainer.save("last.ckpt")
    trainer.update()

    def full(self: Any, path: Any) -> int:
        raise OSError(28, "No space left on device")

    memory = type(trainer.algorithm.memory)  # type: ignore[attr-defined]
    monkeypatch.setattr(memory, "save", full)
    with pytest.raises(Unavailable, match=r"last-2\.replay: cannot be written: No space left on device"):
        trainer.save("last.ckpt")
    again = Trainer(config, tmp_path)
    again.load(tmp_path / "last.ckpt")
    assert again.counts.updates == 1


def test_places_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(find_place("headrace/CartPole-v1"), CompiledEnv)
    assert isinstance(find_place(f"{CartPole.__module__}:CartPole"), CompiledEnv)
    made = find_place("CartPole-v1")
    assert callable(made)
    assert made().unwrapped.spec.id == "CartPole-v1"
    assert find_place("gymnasium:make") is gymnasium.make
    for name, words in (
        ("headrace/Nothing-v0", "no environment"),
        ("Nothing-v0", "neither of Headrace's nor of Gymnasium's"),
        ("gymnasium:nothing", "has no attribute 'nothing'"),
        ("gymnasium:__version__", "expected a class or a function"),
    ):
        with pytest.raises(NotFound, match=words):
            find_place(name)


def test_the_recipes_are_settings(checkout: Path) -> None:
    recipes = sorted((checkout / "examples" / "rl").glob("*.toml"))
    assert {path.stem for path in recipes} >= {"dqn-cartpole", "sac-pendulum"}
    for path in recipes:
        assert load_config(path).algo in path.stem


def test_replaying_learners_have_defaults_of_their_own() -> None:
    assert load_config(None, env="x", algo="dqn").n_envs == 8
    assert load_config(None, ["n_envs=3"], env="x", algo="dqn").n_envs == 3
    assert load_config(None, env="x").n_envs == 256
