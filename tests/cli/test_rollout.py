"""`headrace eval policy` and `headrace rollout` as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from headrace.rl.config import load_config
from headrace.rl.train import train

BROKEN = """
import gymnasium
from gymnasium import spaces

class Broken(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    render_mode = None
    def __init__(self, render_mode=None):
        pass
    def reset(self, seed=None, options=None):
        raise OSError("no such world")
"""


def _headrace(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "headrace", *args]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rollout") / "run"
    train(load_config(None, ["n_envs=64"], env="headrace/CartPole-v1", total_steps=200_000), folder)
    return folder


def test_a_policy_is_judged_and_filmed(run: Path) -> None:
    folder = run.parent
    told = json.loads(_headrace(folder, "eval", "policy", "run", "--episodes", "50", "--json").stdout)
    assert told["episodes"] == 50
    assert told["min_return"] <= told["mean_return"] <= told["max_return"] <= 500
    assert told["mean_return"] == told["mean_length"] > 100
    assert told["std_return"] == told["std_length"]
    assert (told["min_length"], told["max_length"]) == (told["min_return"], told["max_return"])
    assert told["threshold"] == 475
    again = json.loads(_headrace(folder, "eval", "policy", "run/best.ckpt", "--episodes", "50", "--json").stdout)
    assert again["mean_return"] == told["mean_return"]
    text = _headrace(folder, "eval", "policy", "run").stdout.splitlines()
    assert text[0].endswith("best.ckpt: 100 greedy episodes")
    assert [line.split()[0] for line in text[1:]] == ["return", "length", "the"]
    film = _headrace(folder, "rollout", "run", "--video", "pole.gif", "--size", "60")
    assert film.stdout.splitlines()[0].startswith("episode 0: return ")
    with Image.open(folder / "pole.gif") as pictures:
        assert pictures.n_frames > 1
        assert pictures.size == (60, 30)
    _headrace(folder, "rollout", "headrace/CartPole-v1", "--video", "chance.gif", "--fps", "10")
    with Image.open(folder / "chance.gif") as pictures:
        assert pictures.size == (600, 300)
        assert pictures.info["duration"] == 100


def test_chance_acts_where_no_run_is_given(tmp_path: Path) -> None:
    for env in ("headrace/Pendulum-v1", "headrace/CartPole-v1", "Pendulum-v1"):
        told = json.loads(_headrace(tmp_path, "rollout", env, "--episodes", "2", "--seed", "3", "--json").stdout)
        assert len(told["returns"]) == len(told["lengths"]) == 2
        assert told["video"] is None


def test_what_cannot_be_is_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "worlds.py").write_text(BROKEN)
    for args, words in (
        (("eval", "policy", "nowhere"), "nowhere: no such run or checkpoint"),
        (("rollout", "headrace/CartPole-v1", "--video", "film.mp4"), "expected a name that ends in .gif"),
        (
            ("rollout", "headrace/CartPole-v1", "--video", "no/film.gif"),
            "no/film.gif: cannot be written: there is no folder no",
        ),
        (("rollout", "headrace/CartPole-v1", "--video", "film.gif", "--fps", "0"), "fps: expected a number above 0"),
        (("rollout", "worlds:Broken", "--video", "film.gif"), "stage 'worlds:Broken': OSError: no such world"),
        (("rollout", "headrace/Nothing-v0"), "no environment"),
    ):
        done = _headrace(tmp_path, *args)
        assert done.returncode == 1, args
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".gif"] == []
