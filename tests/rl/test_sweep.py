"""Searching for settings: real trials, a study that is gone on with, failures that are noted."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, IntegrityError, NotFound, Unavailable
from headrace.rl.config import load_config
from headrace.rl.ranges import parse_range
from headrace.rl.sweep import sweep, to_toml

SMALL = ["n_envs=32", "n_steps=32", "eval_every=5", "eval_episodes=20", "target_return=nan"]
CARTPOLE: dict[str, Any] = {"env": "headrace/CartPole-v1", "total_steps": 10_000}


def test_a_study_is_gone_on_with_and_its_best_settings_train(tmp_path: Path) -> None:
    ranges = [parse_range("ppo.learning_rate=log:1e-5..1e-2"), parse_range("hidden=[16]|[32, 32]")]
    first = sweep(SMALL, ranges, tmp_path, trials=2, **CARTPOLE)
    assert len(first) == 2
    told: list[tuple[int, int]] = []
    found = sweep(SMALL, ranges, tmp_path, trials=4, told=lambda trial, n: told.append((trial.number, n)), **CARTPOLE)
    assert told == [(2, 3), (3, 4)]
    assert len({trial.settings["ppo.learning_rate"] for trial in found}) == 4
    assert {trial.number for trial in found} == {0, 1, 2, 3}
    assert [trial.value for trial in found] == sorted((trial.value for trial in found), reverse=True)
    for trial in found:
        assert trial.state == "complete"
        assert 1e-5 <= float(trial.settings["ppo.learning_rate"]) <= 1e-2
        assert (tmp_path / f"trial-{trial.number:03}" / "best.ckpt").is_file()
    best = load_config(tmp_path / "best.toml")
    assert repr(best.ppo["learning_rate"]) == found[0].settings["ppo.learning_rate"]
    assert best.n_envs == 32


def test_a_trial_that_fails_is_noted_and_the_next_one_runs(tmp_path: Path) -> None:
    found = sweep(SMALL, [parse_range("ppo.clip=-1|0.2")], tmp_path, trials=6, **CARTPOLE)
    assert {trial.state for trial in found} == {"complete", "failed"}
    assert found[0].state == "complete"
    failed = next(trial for trial in found if trial.state == "failed")
    assert "PpoConfig.clip: expected a number above 0" in failed.error
    assert failed.settings == {"ppo.clip": "-1"}


def test_an_end_keeps_what_is_done(tmp_path: Path) -> None:
    ctx = Context()
    ranges = [parse_range("n_steps=int:8..16")]
    found = sweep(SMALL, ranges, tmp_path, trials=50, told=lambda *_: ctx.cancel(), ctx=ctx, **CARTPOLE)
    assert len(found) == 1
    assert (tmp_path / "best.toml").is_file()


def test_hopeless_trials_are_pruned(tmp_path: Path) -> None:
    ranges = [parse_range("ppo.learning_rate=1e-9|5e-3")]
    found = sweep([*SMALL, "eval_every=1"], ranges, tmp_path, trials=14, prune=True, **CARTPOLE)
    assert [trial for trial in found if trial.state == "pruned"]
    assert len(found) == 14


def test_a_trial_that_is_broken_off_does_not_count(tmp_path: Path) -> None:
    ctx, ranges = Context(), [parse_range("n_steps=int:8..16")]
    threading.Timer(0.5, ctx.cancel).start()
    long = {**CARTPOLE, "total_steps": 1_000_000_000}
    assert sweep(SMALL, ranges, tmp_path, trials=1, ctx=ctx, **long) == []
    assert not (tmp_path / "best.toml").exists()
    assert (tmp_path / "trial-000" / "last.ckpt").is_file()
    with pytest.raises(ConfigError, match="holds a study with total_steps = 1000000000, not 10000"):
        sweep(SMALL, ranges, tmp_path, trials=1, **CARTPOLE)


def test_trials_run_beside_each_other(tmp_path: Path) -> None:
    ended: list[int] = []
    ranges = [parse_range("ppo.learning_rate=1e-4..1e-2")]
    found = sweep(SMALL, ranges, tmp_path, trials=5, jobs=2, told=lambda _, n: ended.append(n), **CARTPOLE)
    assert {trial.number for trial in found} == set(range(5))
    assert ended == [1, 2, 3, 4, 5]


def test_what_an_environment_raises_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poor_world.py").write_text("def world():\n    raise RuntimeError('no such world')\n")
    monkeypatch.syspath_prepend(tmp_path)
    poor = {**CARTPOLE, "env": "poor_world:world"}
    found = sweep([*SMALL, "n_envs=2"], [parse_range("seed=1|2")], tmp_path / "study", trials=2, **poor)
    assert [trial.state for trial in found] == ["failed", "failed"]
    assert "no such world" in found[0].error


def test_a_study_is_gone_on_with_as_it_was(tmp_path: Path) -> None:
    sweep(SMALL, [parse_range("hidden=[8]|[16]"), parse_range("ppo.clip=log:0.1..0.3")], tmp_path, trials=1, **CARTPOLE)
    for text, words in (
        ("hidden=[8]|[32]", r"the study has tried \[8\]\|\[16\]"),
        ("ppo.clip=0.1..0.3", "has tried a log range"),
    ):
        with pytest.raises(ConfigError, match=words):
            sweep(SMALL, [parse_range(text)], tmp_path, trials=2, **CARTPOLE)
    with pytest.raises(ConfigError, match="holds a study with n_envs = 32, not 16"):
        sweep([*SMALL, "n_envs=16"], [parse_range("hidden=[8]|[16]")], tmp_path, trials=2, **CARTPOLE)
    wider = [parse_range("ppo.clip=log:0.05..0.5")]
    assert len(sweep([*SMALL, "threads=1"], wider, tmp_path, trials=2, **CARTPOLE)) == 2


@pytest.mark.parametrize("content", ["garbage\n\n", '{"op": 1}\n', "[]\n", "\0\n\n"])
def test_a_damaged_study_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.journal").write_text(content)
    with pytest.raises(IntegrityError, match=r"study\.journal: no study, or one that is damaged"):
        sweep(SMALL, [parse_range("hidden=[8]|[16]")], tmp_path, trials=1, **CARTPOLE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a=",
        "=1..2",
        "a=1",
        "a=2..1",
        "a=x..y",
        "a=log:0..1",
        "a=int:0.5..2",
        "a=big:1..2",
        "a=1..inf",
        "a=1|",
        "a=1|1",
    ],
)
def test_ranges_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--vary"):
        parse_range(text)


def test_settings_no_trial_could_have_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="something to vary"):
        sweep(SMALL, [], tmp_path, trials=1, **CARTPOLE)
    with pytest.raises(ConfigError, match="n_envs"):
        sweep(["n_envs=0"], [parse_range("seed=0|1")], tmp_path / "none", trials=1, **CARTPOLE)
    with pytest.raises(ConfigError, match="--vary hidden: is given twice"):
        sweep(SMALL, [parse_range("hidden=[8]|[9]")] * 2, tmp_path / "none", trials=1, **CARTPOLE)
    with pytest.raises(ConfigError, match=r"--vary ppo\.lr: no trial could have it: ppo: has no lr"):
        sweep(SMALL, [parse_range("ppo.lr=0.1..0.2")], tmp_path / "none", trials=1, **CARTPOLE)
    with pytest.raises(NotFound, match="no environment 'headrace/Pole-v1'"):
        sweep(SMALL, [parse_range("seed=0|1")], tmp_path / "none", trials=1, env="headrace/Pole-v1")
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="file: cannot be written"):
        sweep(SMALL, [parse_range("seed=0|1")], tmp_path / "file", trials=1, **CARTPOLE)


def test_any_config_can_be_written_and_read() -> None:
    changes = ["target_return=nan", "hidden=[8, 9]", "ppo.clip=0.1", "normalise_obs=false"]
    config = load_config(None, changes, env='a"ü😀b:C', algo="ppo")
    table = tomllib.loads(to_toml(config))
    assert table["env"] == 'a"ü😀b:C'
    assert table["hidden"] == [8, 9]
    assert table["ppo"] == {"clip": 0.1}
    assert table["target_return"] != table["target_return"]
