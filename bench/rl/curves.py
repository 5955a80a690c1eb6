"""Learning curves beside Stable-Baselines3's: the same algorithm, settings and number of steps; nothing is timed.

    python bench/rl/curves.py [CartPole Acrobot Pendulum] [--seeds 3] [--out docs/curves] [--json]

A curve is the mean return of the last 100 training episodes; a picture has the mean over seeds, and a band from the
lowest to the highest.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, BenchError, make_venv, progress
from headrace.rl import load_config, train
from headrace.rl.curve import Curve, draw_curves
from headrace.rl.train import Report

HERE = Path(__file__).resolve().parent
PEERS = ("torch==2.13.0", "stable-baselines3==2.9.2", "six==1.17.0")

Points = list[tuple[int, float]]

TASKS: dict[str, dict[str, Any]] = {
    "CartPole": {
        "env": "CartPole-v1", "total_steps": 60_000, "n_envs": 8, "n_steps": 32, "batch": 256, "epochs": 20,
        "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3, "normalise_obs": False,
    },
    "Acrobot": {
        "env": "Acrobot-v1", "total_steps": 200_000, "n_envs": 16, "n_steps": 256, "batch": 256, "epochs": 4,
        "gamma": 0.99, "gae_lambda": 0.94, "learning_rate": 3e-4, "normalise_obs": True,
    },
    "Pendulum": {
        "env": "Pendulum-v1", "total_steps": 150_000, "n_envs": 4, "n_steps": 1024, "batch": 128, "epochs": 10,
        "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3, "normalise_obs": False,
    },
}  # fmt: skip
"""From the hyper-parameters of rl-baselines3-zoo, without what only one of the two has (schedules of the clip, SDE)."""


def ours(task: dict[str, Any], seed: int) -> Points:
    config = load_config(
        None,
        env=f"headrace/{task['env']}",
        total_steps=task["total_steps"],
        n_envs=task["n_envs"],
        n_steps=task["n_steps"],
        normalise_obs=task["normalise_obs"],
        seed=seed,
        target_return=math.nan,
        eval_every=1_000_000,
        ppo={
            "epochs": task["epochs"],
            "minibatches": task["n_envs"] * task["n_steps"] // task["batch"],
            **{name: task[name] for name in ("gamma", "gae_lambda", "learning_rate")},
        },
    )
    curve: Points = []

    def watch(report: Report) -> None:
        if math.isfinite(report.mean_return):
            curve.append((report.steps, report.mean_return))

    train(config, watch=watch)
    return curve


def theirs(python: str, task: dict[str, Any], seed: int) -> Points:
    line = [python, str(HERE / "peers_curves.py"), json.dumps({**task, "seed": seed})]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"Stable-Baselines3 failed:\n{done.stderr[-2000:]}")
    return [(int(steps), float(value)) for steps, value in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "curves")
    parser.add_argument("--peer-python", help="a Python that has the peer; default: one is made under .cache")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    args = parser.parse_args()
    python = args.peer_python or str(make_venv(ROOT / ".cache" / "bench" / "curves", PEERS))
    args.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in args.tasks or TASKS:
        task = TASKS[name]
        curves: dict[str, list[Points]] = {"Headrace": [], "Stable-Baselines3": []}
        for seed in range(args.seeds):
            curves["Headrace"].append(ours(task, seed))
            curves["Stable-Baselines3"].append(theirs(python, task, seed))
            ends = {label: round(runs[-1][-1][1], 1) for label, runs in curves.items()}
            progress(f"{name}, seed {seed}: {ends}")
        drawn = [
            Curve(label, [([p[0] for p in points], [p[1] for p in points]) for points in runs])
            for label, runs in curves.items()
        ]
        (args.out / f"{name.lower()}.png").write_bytes(draw_curves(drawn, title=task["env"]))
        found[name] = {label: [points[-1][1] for points in runs] for label, runs in curves.items()}
    print(json.dumps({"bench": "rl/curves", "last_returns": found}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
