"""Environments, rollouts and PPO beside their peers, one after the other: what each program finds, in one JSON line.

    python bench/rl/run.py [--json] [--no-peers] [--peer-python PYTHON]

A figure that could not be taken, for want of a peer, is null; the reason goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import BenchError, machine, progress, warn_if_busy

HERE = Path(__file__).resolve().parent
PROGRAMS = ("envs", "pipeline", "ppo")
KEYS = (
    "env_steps_s",
    "env_ratio_envpool",
    "env_ratio_gymnasium_vector",
    "env_ratio_gymnax",
    "pipeline_episodes_s",
    "pipeline_mean_length",
    "pipeline_steps_s",
    "pipeline_random_episodes_s",
    "pipeline_random_mean_length",
    "ppo_steps_s",
    "ppo_ratio_purejaxrl",
    "solve_s_median",
    "solved",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true", help="measure Headrace alone")
    parser.add_argument("--peer-python", help="a Python that has the peers; default: one is made under .cache")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    args = parser.parse_args()
    options = ["--json", *(["--no-peers"] if args.no_peers else [])]
    options += ["--peer-python", args.peer_python] if args.peer_python else []
    warn_if_busy()
    found: dict[str, object] = {}
    for name in PROGRAMS:
        progress(f"-- bench/rl/{name}.py")
        done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options], stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise BenchError(f"bench/rl/{name}.py ended with {done.returncode}")
        found |= json.loads(done.stdout.splitlines()[-1])
    result = {"bench": "rl", "machine": machine(), **{key: found.get(key) for key in KEYS}}
    if not args.json:
        for key in KEYS:
            progress(f"{key:32} {result[key]}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
