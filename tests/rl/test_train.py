"""Runs: they learn, end when they should, go on bit by bit, and say what is wrong with what they are given."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, IntegrityError, LoadFailed, Unavailable
from headrace.rl import checkpoint as checkpoints
from headrace.rl.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from headrace.rl.config import TrainConfig, load_config
from headrace.rl.envs import CompiledEnv
from headrace.rl.evaluate import evaluate
from headrace.rl.policy import initial, mlp_for
from headrace.rl.train import Report, Trainer, train

SMALL = {"env": "headrace/CartPole-v1", "n_envs": 64, "n_steps": 32, "threads": 1, "eval_episodes": 10}


def _config(**changes: Any) -> TrainConfig:
    return msgspec.convert({**SMALL, "target_return": math.nan, **changes}, TrainConfig)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_it_learns_until_the_target_is_reached(algo: str) -> None:
    learner = {"ppo": {"learning_rate": 1e-3}} if algo == "ppo" else {"a2c": {"learning_rate": 3e-3}}
    reports: list[Report] = []
    config = msgspec.convert(
        {"env": "headrace/CartPole-v1", "algo": algo, "n_steps": 32, "total_steps": 3_000_000, **learner}, TrainConfig
    )
    result = train(config, watch=reports.append)
    assert result.solved
    assert result.best_return >= 475
    assert result.steps == reports[-1].steps < 3_000_000
    assert result.episodes == reports[-1].episodes > 0
    assert reports[0].mean_return < 60 < reports[-1].mean_return
    assert {report.lag for report in reports} == {0}


def test_a_run_leaves_a_folder_that_tells_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    train(_config(total_steps=64 * 32 * 12, eval_every=5), folder)
    assert json.loads((folder / "config.json").read_text())["n_envs"] == 64
    assert {path.name for path in folder.iterdir()} >= {"config.json", "last.ckpt", "best.ckpt"}
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    (events,) = folder.glob("events.*")
    steps = [event.step for event in reader.EventFileLoader(str(events)).Load() if event.HasField("summary")]
    assert steps == [64 * 32 * k for k in range(1, 13)]
    with pytest.raises(ConfigError, match="holds a run already"):
        train(_config(), folder)
    with pytest.raises(ConfigError, match=r"there is no last\.ckpt"):
        train(_config(), tmp_path, resume=True)


def test_going_on_gives_the_bits_of_a_run_without_a_break(tmp_path: Path, cartpole: CompiledEnv) -> None:
    config = _config(total_steps=10**9, normalise_reward=True)
    whole, first = Trainer(config, env=cartpole), Trainer(config, tmp_path, cartpole)
    for _ in range(3):
        whole.update()
        first.update()
    first.save("last.ckpt")
    second = Trainer(config, tmp_path, cartpole)
    second.load(tmp_path / "last.ckpt")
    reports = [(whole.update(), second.update()) for _ in range(3)]
    for name, array in whole.algorithm.state().arrays.items():
        np.testing.assert_array_equal(array, second.algorithm.state().arrays[name], err_msg=name)
    for one, other in reports:
        assert (one.losses, one.steps, one.episodes, one.mean_return) == (
            other.losses, other.steps, other.episodes, other.mean_return,
        )  # fmt: skip


def test_a_context_ends_it_and_nothing_is_lost(tmp_path: Path) -> None:
    ctx = Context()
    config = _config(total_steps=10**9)

    def watch(report: Report) -> None:
        if report.updates == 4:
            ctx.cancel()

    result = train(config, tmp_path, watch=watch, ctx=ctx)
    assert result.updates == 4
    longer = msgspec.structs.replace(config, total_steps=64 * 32 * 6)
    assert train(longer, tmp_path, resume=True).updates == 6


def test_another_run_cannot_be_gone_on_with(tmp_path: Path, cartpole: CompiledEnv) -> None:
    Trainer(_config(), tmp_path, cartpole).save("last.ckpt")
    with pytest.raises(ConfigError, match=r"was made with n_envs = 64, not 32"):
        Trainer(_config(n_envs=32), tmp_path, cartpole).load(tmp_path / "last.ckpt")
    save_checkpoint(tmp_path / "other.ckpt", Checkpoint({}, {"kind": "poem"}))
    with pytest.raises(ConfigError, match="expected a checkpoint of training, it is of"):
        Trainer(_config(), tmp_path, cartpole).load(tmp_path / "other.ckpt")


def test_checkpoints_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros(0, np.int64),
        "c": np.array([7], np.uint8),
        "d": np.array(3.5),
    }
    save_checkpoint(tmp_path / "x.ckpt", Checkpoint(arrays, {"n": 1, "name": "ä"}))
    found = load_checkpoint(tmp_path / "x.ckpt")
    assert found.facts == {"n": 1, "name": "ä"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)


def test_damaged_and_foreign_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    save_checkpoint(path, Checkpoint({"a": np.arange(64.0)}, {}))
    good = path.read_bytes()
    for cut in (0, 4, 20, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(LoadFailed, match=r"x\.ckpt"):
            load_checkpoint(path)
    damaged = bytearray(good)
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(IntegrityError, match="not what was written"):
        load_checkpoint(path)
    safetensors = pytest.importorskip("safetensors.numpy")
    path.write_bytes(safetensors.save({"a": np.zeros(2)}))
    with pytest.raises(LoadFailed, match="expected a checkpoint"):
        load_checkpoint(path)
    with pytest.raises(LoadFailed):
        load_checkpoint(tmp_path / "none.ckpt")


def test_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ckpt"
    save_checkpoint(path, Checkpoint({"a": np.arange(3.0)}, {}))

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "replace_file", full)
    with pytest.raises(Unavailable, match="No space left on device; the one before it is kept"):
        save_checkpoint(path, Checkpoint({"a": np.zeros(3)}, {}))
    np.testing.assert_array_equal(load_checkpoint(path).arrays["a"], np.arange(3.0))


def test_evaluation_counts_one_episode_of_each_environment(cartpole: CompiledEnv) -> None:
    spec = mlp_for(cartpole.spec)
    found = evaluate(cartpole, spec, initial(spec, 0), episodes=37, seed=3)
    assert found.episodes == 37
    np.testing.assert_array_equal(found.returns, found.lengths)
    again = evaluate(cartpole, spec, initial(spec, 0), episodes=37, seed=3, threads=1)
    np.testing.assert_array_equal(found.returns, again.returns)
    assert not np.array_equal(found.returns, evaluate(cartpole, spec, initial(spec, 0), episodes=37, seed=4).returns)


def test_settings_come_from_a_file_and_are_changed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('env = "headrace/CartPole-v1"\nn_envs = 32\n[ppo]\nclip = 0.1\n')
    config = load_config(path, ["n_steps=16", "ppo.epochs=2", "activation=relu", "hidden=[8, 8]"], seed=5, algo=None)
    assert (config.n_envs, config.n_steps, config.seed, config.activation, config.hidden) == (32, 16, 5, "relu", (8, 8))
    assert (config.learner.clip, config.learner.epochs) == (0.1, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["n_envs=0"], r"\$\.n_envs"),
        (["n_env=5"], "n_env"),
        (["ppo.clipp=0.1"], "ppo: has no clipp; it has learning_rate"),
        (["ppo.clip=-1"], "PpoConfig.clip: expected a number above 0"),
        (["a2c.gamma=0.9"], "a2c: has settings, but algo is 'ppo'"),
        (["ppo"], "expected key=value"),
        (["algo=reinforce"], r"\$\.algo"),
    ],
)
def test_settings_that_cannot_be_name_themselves(changes: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(None, changes, env="headrace/CartPole-v1")


def test_a_run_needs_an_environment_and_a_file_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env: expected the environment"):
        load_config(None)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("env = ")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_config(tmp_path / "bad.toml")
