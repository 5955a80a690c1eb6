"""`headrace curve` as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from headrace.rl.config import load_config
from headrace.rl.train import train


def _curve(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "headrace", "curve", *args]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    changes = ["n_envs=32", "n_steps=32", "eval_every=4", "eval_episodes=5"]
    for name, seed, more in (("a-0", 0, []), ("a-1", 1, []), ("b", 0, ["hidden=[8]"])):
        config = load_config(None, [*changes, *more], env="headrace/CartPole-v1", total_steps=8192, seed=seed)
        train(config, folder / name)
    return folder


def test_runs_that_differ_by_the_seed_are_one_curve(runs: Path) -> None:
    told = json.loads(_curve(runs, "a-0", "a-1", "b", "--out", "f.png", "--evaluation", "--json").stdout)
    assert told["curves"] == [{"label": "a-0 and 1 more", "runs": 2}, {"label": "b", "runs": 1}]
    assert told["what"] == "evaluation"
    with Image.open(runs / "f.png") as picture:
        assert picture.size == (720, 420)
    assert _curve(runs, "b", "--out", "g.png").stdout == "g.png: b\n"


def test_what_cannot_be_is_one_line_and_leaves_no_file(runs: Path) -> None:
    (runs / "empty").mkdir()
    (runs / "empty" / "config.json").write_text("{}")
    (runs / "odd").mkdir()
    (runs / "odd" / "config.json").write_text("[")
    for args, words in (
        (("nowhere", "--out", "x.png"), "nowhere: expected the folder of a run, its config.json: No such file"),
        (("odd", "--out", "x.png"), "odd/config.json: Expecting value"),
        (("empty", "--out", "x.png"), "expected at least one with a finite point"),
        (("b", "--out", "x.jpg"), "expected a name that ends in .png"),
        (("b", "--out", "no/x.png"), "no/x.png: cannot be written: No such file"),
    ):
        done = _curve(runs, *args)
        assert done.returncode == 1, args
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list(runs.glob("x.*"))
