"""PPO: steps a second end to end, and seconds from the start of a process to a solved CartPole.

    python bench/rl/ppo.py [--updates 60] [--seeds 5] [--no-peers | --peer-python PATH] [--json]

* throughput: 256 environments x 64 steps, 4 epochs, 8 minibatches, separate 64x64 actor and critic; collecting,
  returns, learning and publishing all included, one after the other (policy lag 0).
* solving: a fresh process trains with `headrace.rl.train` until 100 greedy evaluation episodes on held-out seeds
  reach a mean return of 475; wall time of the whole process, compiled environment in the disk cache.

Peers, in an environment of their own (`peers_ppo.py`): Stable-Baselines3 with the zoo's settings for CartPole; gymnax's
environment alone, which tells what PureJaxRL's 181,000 steps a second (measured where gymnax took 8.8 million) would be
on this machine today.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, BenchError, machine, make_venv, median, progress, table, warn_if_busy
from headrace.rl.envs import make_env
from headrace.rl.learners.ppo import NativePpo, PpoConfig
from headrace.rl.policy import Weights, initial, mlp_for
from headrace.rl.rollout import Collector

ENV = "headrace/CartPole-v1"
N_ENVS, N_STEPS = 256, 64
PEERS = ("torch==2.13.0", "stable-baselines3==2.9.2", "six==1.17.0", "gymnax==1.0.1")
PUREJAXRL_STEPS_S, PUREJAXRL_GYMNAX_STEPS_S = 181e3, 8.8e6

SOLVE = """
import json, sys
from headrace.rl import TrainConfig, train
config = TrainConfig(
    env="headrace/CartPole-v1", seed=int(sys.argv[1]), n_envs=64, n_steps=32, total_steps=500_000,
    normalise_obs=False, eval_every=3, ppo={"learning_rate": 2.5e-3},
)
result = train(config)
print(json.dumps({"solved": result.solved, "steps": result.steps, "return": result.best_return}))
"""


def throughput(updates: int) -> dict[str, Any]:
    """Medians over `updates`, after some that are not counted."""
    env = make_env(ENV)
    spec = mlp_for(env.spec)
    collector = Collector(env, spec, n_envs=N_ENVS, n_steps=N_STEPS)
    learner = NativePpo(spec, PpoConfig(), initial(spec, 0))
    weights = Weights(learner.parameters)
    collecting, learning, episodes, mean_return = [], [], 0, 0.0
    for update in range(updates + 10):
        began_s = time.perf_counter()
        trajectory = collector.collect(weights)
        collected_s = time.perf_counter()
        learner.update(trajectory)
        weights.publish(learner.parameters)
        if update >= 10:
            collecting.append(collected_s - began_s)
            learning.append(time.perf_counter() - collected_s)
            episodes += trajectory.stats.episodes
            mean_return = trajectory.stats.mean_return
    steps = N_ENVS * N_STEPS
    total_s = [collect_s + learn_s for collect_s, learn_s in zip(collecting, learning, strict=True)]
    return {
        "steps_s": steps / median(total_s),
        "steps_s_mean": steps * updates / sum(total_s),
        "samples_trained_s": 4 * steps / median(total_s),
        "collect_ms": 1e3 * median(collecting),
        "learn_ms": 1e3 * median(learning),
        "episodes_s": episodes / sum(total_s),
        "mean_length": steps * updates / episodes,
        "mean_return": mean_return,
        "policy_lag": 0,
    }


def solving(python: str, code: list[str], seeds: int, label: str) -> list[dict[str, Any]]:
    """One process a seed, the first one's time not counted: it warms the caches."""
    runs = []
    for seed in range(-1, seeds):
        began_s = time.perf_counter()
        done = subprocess.run([python, *code, str(max(seed, 0))], capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - began_s
        if done.returncode != 0:
            raise BenchError(f"{label}: ended with {done.returncode}:\n{done.stderr[-2000:]}")
        if seed >= 0:
            runs.append({"seed": seed, "seconds": took_s, **json.loads(done.stdout.splitlines()[-1])})
            progress(f"{label}, seed {seed}: {runs[-1]}")
    return runs


def peers(python: str, seeds: int) -> dict[str, Any]:
    script = str(Path(__file__).with_name("peers_ppo.py"))
    found = {}
    for name in ("gymnax", "sb3-steps"):
        done = subprocess.run([python, script, name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{name}: ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found[name] = float(done.stdout.splitlines()[-1])
        progress(f"{name}: {found[name]:,.0f} steps/s")
    return {
        "gymnax_env_steps_s": found["gymnax"],
        "sb3_steps_s": found["sb3-steps"],
        "sb3_runs": solving(python, [script, "sb3-solve"], seeds, "SB3"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peer-python", help="a Python that has the peers; default: one is made under .cache")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    args = parser.parse_args()
    warn_if_busy()
    ours = throughput(args.updates)
    runs = solving(sys.executable, ["-c", SOLVE], args.seeds, "headrace")
    result = {
        "machine": machine(),
        "ppo_steps_s": ours["steps_s"],
        "ppo": ours,
        "solve_s_median": median([run["seconds"] for run in runs]),
        "solved": sum(run["solved"] for run in runs),
        "solve_runs": runs,
    }
    rows = [
        ["headrace", f"{ours['steps_s']:,.0f}", f"{result['solve_s_median']:.2f}", f"{result['solved']}/{args.seeds}"]
    ]
    if not args.no_peers:
        python = args.peer_python or str(make_venv(ROOT / ".cache" / "bench" / "ppo", PEERS))
        found = peers(python, min(args.seeds, 3))
        pure = PUREJAXRL_STEPS_S * found["gymnax_env_steps_s"] / PUREJAXRL_GYMNAX_STEPS_S
        sb3_s = median([run["seconds"] for run in found["sb3_runs"]])
        solved = sum(run["solved"] for run in found["sb3_runs"])
        result |= {
            "peers": found,
            "purejaxrl_steps_s_today": pure,
            "ppo_ratio_purejaxrl": ours["steps_s"] / max(pure, PUREJAXRL_STEPS_S),
            "ppo_ratio_sb3": ours["steps_s"] / found["sb3_steps_s"],
            "solve_ratio_sb3": sb3_s / result["solve_s_median"],
        }
        rows.append(
            ["Stable-Baselines3", f"{found['sb3_steps_s']:,.0f}", f"{sb3_s:.2f}", f"{solved}/{len(found['sb3_runs'])}"]
        )
        rows.append(["PureJaxRL, by gymnax today", f"{pure:,.0f}", "-", "-"])
    if not args.json:
        print(table(["PPO on CartPole", "steps/s", "start to 475, s", "solved"], rows))
        print(
            f"{N_ENVS * N_STEPS} steps: collect {ours['collect_ms']:.2f} ms, learn {ours['learn_ms']:.2f} ms;"
            f" {ours['samples_trained_s']:,.0f} samples trained/s, {ours['episodes_s']:,.0f} episodes/s of mean length"
            f" {ours['mean_length']:.0f}, return {ours['mean_return']:.0f}, policy lag 0"
        )
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
