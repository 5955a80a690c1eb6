"""`headrace sweep` as users run it: to its end, to Ctrl-C, and on from there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

SMALL = ["n_envs=32", "n_steps=32", "eval_every=5", "eval_episodes=10", "target_return=nan"]
VARY = ["--vary", "ppo.learning_rate=log:1e-4..1e-2"]


def _command(*args: str) -> list[str]:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    return [sys.executable, "-m", "headrace", "sweep", "headrace/CartPole-v1", *sets, "--steps", "10000", *args]


def _run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*args), cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    args = [*VARY, "--out", "search", "--json"]
    with subprocess.Popen(
        _command(*args, "--trials", "1000"), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        *_, last = process.stdout.read().splitlines()
        assert process.wait(60) == 0
    done = json.loads(last)["trials"]
    assert done >= 1
    more = [json.loads(line) for line in _run(tmp_path, *args, "--trials", str(done + 1)).stdout.splitlines()]
    assert [line["state"] for line in more[:-1]] == ["complete"]
    assert more[-1]["trials"] == done + 1
    assert more[-1]["config"] == "search/best.toml"
    table = _run(tmp_path, *args[:-1], "--trials", str(done + 1))
    assert table.stdout.startswith(f"trial {more[-1]['best']['trial']:3}")
    assert "the best settings: search/best.toml" in table.stdout


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for args, words in (
        ([], "expected something to vary"),
        (["--vary", "hidden"], "--vary hidden: expected KEY=LOW..HIGH"),
        (["--vary", "ppo.lr=0..1"], "--vary ppo.lr: no trial could have it"),
        ([*VARY, "--out", "file"], "file: cannot be written"),
    ):
        done = _run(tmp_path, *args)
        assert done.returncode == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_search_in_which_nothing_was_completed_fails(tmp_path: Path) -> None:
    (tmp_path / "poor.py").write_text("def world():\n    raise RuntimeError('nothing here')\n")
    done = _run(tmp_path, "--set", "env=poor:world", *VARY, "--trials", "1", "--out", "search")
    assert done.stdout.startswith("trial   0     failed  ppo.learning_rate=")
    assert "nothing here" in done.stdout
    assert done.stderr.strip() == "headrace: stage 'sweep': none of 1 trials was completed"
    assert done.returncode == 1
