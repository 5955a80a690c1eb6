"""Environments alone, without a policy: steps a second of CartPole beside EnvPool, Gymnasium and gymnax.

    python bench/rl/envs.py [--no-peers | --peer-python PATH] [--json]

Random actions, made beforehand (gymnax draws its own inside its compiled loop); of several numbers of environments the
fastest counts, for everybody, and of several rounds the best. Headrace resets as Gymnasium does by default, one step
after the end; actions and rewards are checked, and once more without. The other environments follow for comparison,
without peers.

Episodes of CartPole under random actions have some 22 steps: episodes a second are steps a second over that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, BenchError, machine, make_venv, progress, table, warn_if_busy
from headrace.rl.envs import CompiledEnv, make_env
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.envs.registry import SHIPPED
from headrace.rl.spec import Box, Discrete

ENV = "headrace/CartPole-v1"
SIZES = (1024, 8192, 16384, 65536)
PEERS = ("numpy==2.4.6", "envpool==1.2.5", "gymnasium==1.3.0", "gymnax==1.0.1", "six==1.17.0")
SECONDS, ROUNDS = 0.4, 3


def fastest(step: Callable[[Any], object], actions: list[Any], n: int) -> float:
    best = 0.0
    for _ in range(ROUNDS + 1):  # the first warms up
        calls, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < SECONDS:
            step(actions[calls % len(actions)])
            calls += 1
        best = max(best, calls * n / (time.perf_counter() - began_s))
    return best


def random_actions(env: CompiledEnv, n: int, count: int = 16) -> list[Any]:
    rng, space = np.random.default_rng(0), env.spec.action
    if isinstance(space, Box):
        return [rng.uniform(space.low, space.high, (n, *space.shape)).astype(np.float32) for _ in range(count)]
    top = space.n if isinstance(space, Discrete) else np.asarray(space.nvec)
    return [rng.integers(0, top, (n, *space.shape)).astype(np.int32) for _ in range(count)]


def batch_steps_s(env: CompiledEnv, n: int, *, threads: int = 2, check: bool = True) -> float:
    batch = BatchEnv(env, n, autoreset=Autoreset.NEXT_STEP, threads=threads, check=check)
    batch.reset()
    return fastest(batch.step, random_actions(env, n), n)


def headrace_steps_s() -> dict[str, dict[str, float]]:
    env = make_env(ENV)
    import gymnasium

    import headrace.rl.envs.gym

    headrace.rl.envs.gym.register()

    def as_gymnasium(n: int) -> float:
        envs = gymnasium.make_vec(ENV, num_envs=n)
        envs.reset(seed=0)
        return fastest(envs.step, random_actions(env, n), n)

    return {
        "headrace": {str(n): batch_steps_s(env, n) for n in SIZES},
        "headrace, unchecked": {str(n): batch_steps_s(env, n, check=False) for n in SIZES},
        "headrace, one thread": {str(n): batch_steps_s(env, n, threads=1) for n in SIZES},
        "headrace through gymnasium.make_vec": {str(n): as_gymnasium(n) for n in SIZES},
    }


def peer(python: str, name: str) -> dict[str, float]:
    script = Path(__file__).with_name("peers_envs.py")
    done = subprocess.run([python, str(script), name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def others() -> dict[str, float]:
    found = {}
    for name in sorted(set(SHIPPED) - {"headrace/Particles-v0", "headrace/Hover-v0"}):
        progress(f"  {name}")
        found[name] = batch_steps_s(make_env(name), 8192)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peer-python", help="a Python that has the peers; default: one is made under .cache")
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    args = parser.parse_args()
    warn_if_busy()
    measured: dict[str, dict[str, float]] = {}
    if not args.no_peers:
        python = args.peer_python or str(make_venv(ROOT / ".cache" / "bench" / "envs", PEERS))
        for name, shown in (("envpool", "EnvPool"), ("gymnasium", "Gymnasium vector"), ("gymnax", "gymnax")):
            progress(shown)
            # Gymnasium's is the one that is installed here; gymnax wants an older one in its environment
            measured[shown] = peer(sys.executable if name == "gymnasium" else python, name)
    progress("headrace")
    measured |= headrace_steps_s()
    best = {name: max(found.values()) for name, found in measured.items()}
    result = {
        "bench": "rl/envs",
        "machine": machine(),
        "env_steps_s": round(best["headrace"]),
        "env_ratio_envpool": round(best["headrace"] / best["EnvPool"], 1) if "EnvPool" in best else None,
        "env_ratio_gymnasium_vector": (
            round(best["headrace"] / best["Gymnasium vector"], 1) if "Gymnasium vector" in best else None
        ),
        "env_ratio_gymnax": round(best["headrace"] / best["gymnax"], 1) if "gymnax" in best else None,
        "steps_s": {name: {n: round(value) for n, value in found.items()} for name, found in measured.items()},
        "others_steps_s": {name: round(value) for name, value in others().items()},
    }
    if not args.json:
        rows = []
        for name, found in measured.items():
            at = max(found, key=lambda n: found[n])
            rows.append([name, at, f"{best[name] / 1e6:.2f} M", f"{best['headrace'] / best[name]:.1f}"])
        print(table(["CartPole, 2 threads", "environments", "steps/s", "headrace is x"], rows))
        rows = [[name, f"{value / 1e6:.1f} M"] for name, value in result["others_steps_s"].items()]
        print("\n" + table(["8192 environments", "steps/s"], rows) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench/rl/envs.py: {error}")
