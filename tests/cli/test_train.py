"""`headrace train` as users run it: in a process of its own, to its end or to Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

SMALL = ["--set", "n_envs=64", "--set", "n_steps=32", "--set", "eval_episodes=10"]


def _command(*args: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "train", *args]


def test_it_trains_and_tells_scripts(tmp_path: Path) -> None:
    args = _command("headrace/CartPole-v1", "--steps", "50000", "--out", "run", "--json", *SMALL)
    done = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["steps"] == 51200 or lines[-1]["solved"]
    assert lines[-1]["run"] == "run"
    assert "eval/mean_return" in lines[0]
    assert (tmp_path / "run" / "last.ckpt").is_file()
    again = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 1
    assert again.stderr.strip() == "headrace: run: holds a run already; resume it or choose another folder"


def test_ctrl_c_ends_it_after_a_last_checkpoint(tmp_path: Path) -> None:
    never = ["--set", "target_return=nan", "--set", "total_steps=1_000_000_000", "--set", "eval_every=1"]
    args = _command("headrace/CartPole-v1", "--out", "run", "--json", *SMALL, *never)
    with subprocess.Popen(args, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        *_, last = process.stdout.read().splitlines()
        assert process.wait(60) == 0
    told = json.loads(last)
    assert not told["solved"]
    assert told["steps"] > 0
    assert (tmp_path / "run" / "last.ckpt").is_file()


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    for args, words in (
        (["headrace/CartPol-v1"], "no environment 'headrace/CartPol-v1'; there are headrace/Acrobot-v1"),
        (["headrace/CartPole-v1", "--set", "ppo.clip=-1"], "PpoConfig.clip: expected a number above 0"),
        ([], "env: expected the environment to train in"),
    ):
        done = subprocess.run(_command(*args), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("headrace: ")
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
