"""Replay memory: one process pushes and another samples, both as fast as they can, beside cpprb and torchrl.

    python bench/rl/replay.py [--no-peers | --peer-python PATH] [--native] [--json]

Rows are those of CartPole (41 bytes), the memory holds a million, draws are of 256. Pushes are of one row, as an
environment on its own makes them, and of 256, as a vector of environments does. By priority, each draw is followed by
an update of its priorities. All run in turn, several rounds; the median counts. `ratio` is how many times as long the
peer takes to push one row and sample one row.

--native adds what a million pushes cost in C++, lock-free and behind a mutex; it needs cmake and a compiler.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, BenchError, machine, make_venv, median, progress, table, warn_if_busy

PEERS = ("numpy==2.4.6", "cpprb==11.0.0", "torch==2.13.0", "tensordict==0.14.3", "torchrl==0.14.1")
CASES = (("uniform", 1), ("uniform", 256), ("prioritised", 1), ("prioritised", 256))
SAMPLE_ROWS = 256
SHOWN = {"headrace": "headrace", "cpprb": "cpprb", "torchrl": "torchrl, memory-mapped"}


def measure(python: str, name: str, kind: str, push_rows: int, seconds: float) -> dict[str, float]:
    script = Path(__file__).with_name("peers_replay.py")
    command = [python, str(script), name, kind, str(push_rows), str(SAMPLE_ROWS), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def cost_ns(rates: dict[str, float]) -> float:
    """Of one row pushed and one row sampled."""
    return 1e9 / rates["pushed_s"] + 1e9 / rates["sampled_s"]


def native(runs: int) -> dict[str, float]:
    scripts = sysconfig.get_path("scripts")
    cmake, ninja = (shutil.which(name, path=scripts) or shutil.which(name) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        raise BenchError("--native needs cmake and ninja: pip install cmake ninja")
    build = ROOT / "build" / "cpp-release"
    for command in (
        [cmake, "--preset", "release", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"],
        [cmake, "--build", str(build), "--target", "headrace_replay_bench"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    program = str(build / "headrace_replay_bench")
    done = subprocess.run([program, str(runs)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peer-python", help="a Python that has the peers; default: one is made under .cache")
    parser.add_argument("--native", action="store_true", help="also the C++ core by itself, beside a mutex")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    args = parser.parse_args()
    warn_if_busy()
    pythons = {"headrace": sys.executable}
    if not args.no_peers:
        python = args.peer_python or str(make_venv(ROOT / ".cache" / "bench" / "replay", PEERS))
        pythons |= {"cpprb": python, "torchrl": python}
    cases: dict[str, Any] = {}
    for kind, push_rows in CASES:
        # the wheel of torchrl has no sum tree for every Python: it takes part in uniform draws only
        names = [name for name in pythons if not (name == "torchrl" and kind == "prioritised")]
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(args.rounds):
            for name in names:
                progress(f"{kind}, pushes of {push_rows}: {name} {number + 1}/{args.rounds}")
                rounds[name].append(measure(pythons[name], name, kind, push_rows, args.seconds))
        case = {
            name: {key: round(median([one[key] for one in found])) for key in found[0]}
            for name, found in rounds.items()
        }
        for figures in case.values():
            figures["ratio"] = round(cost_ns(figures) / cost_ns(case["headrace"]), 1)
        cases[f"{kind} {push_rows}"] = case
    ratios = {
        name: min(case[name]["ratio"] for case in cases.values() if name in case)
        for name in pythons
        if name != "headrace"
    }
    result = {
        "bench": "rl/replay",
        "machine": machine(),
        **{f"replay_ratio_{name}": ratio for name, ratio in ratios.items()},
        "cases": cases,
        "native": native(5) if args.native else None,
    }
    if not args.json:
        lines = [
            [title, SHOWN[name], *[f"{one[key] / 1e6:.2f} M" for key in ("pushed_s", "sampled_s")], f"{one['ratio']}"]
            for title, case in cases.items()
            for name, one in case.items()
        ]
        print(table(["draws, rows a push", "memory", "pushed/s", "sampled/s", "headrace is x"], lines) + "\n")
        if args.native:
            figures = result["native"].items()
            print(table(["C++, a million rows or a draw of 256", ""], [[k, f"{v:.2f}"] for k, v in figures]) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench/rl/replay.py: {error}")
