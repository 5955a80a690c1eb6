"""The rollout pipeline of CartPole: environment, policy, normaliser and trajectory, without learning.

    python bench/rl/pipeline.py [--seconds 4] [--no-peers | --peer-python PATH] [--json]

* pole up: a policy that PPO trains here first, until it keeps every pole up; episodes have nearly all 500 steps.
* random: a fresh policy; episodes have some 22 steps.

In both, separate 64x64 tanh actor and critic, actions drawn, observations normalised by running statistics, obs,
actions, log-probabilities, values, rewards and ends of every step written. Nothing is learnt while the clock runs, so
the policy's lag is 0 and no samples are trained.

Peers (`peers_pipeline.py`, in an environment of their own): the same pieces as one would put them together, a torch
actor-critic and a running mean in NumPy over EnvPool's CartPole and over Gymnasium's NumPy vector environment.
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
from headrace.rl.normalise import Moments
from headrace.rl.policy import Floats, Weights, initial, mlp_for
from headrace.rl.rollout import Collector

ENV = "headrace/CartPole-v1"
N_ENVS, N_STEPS = 4096, 125
PEERS = ("numpy==2.4.6", "torch==2.13.0", "envpool==1.2.5", "gymnasium==1.4.0")


def pole_up() -> tuple[Floats, Moments]:
    """Parameters whose drawn actions keep poles up for 500 steps, and the statistics that belong to them."""
    env = make_env(ENV)
    spec = mlp_for(env.spec)
    for seed in range(10):
        collector = Collector(env, spec, n_envs=256, n_steps=64, seed=seed)
        learner = NativePpo(spec, PpoConfig(learning_rate=1e-3), initial(spec, seed))
        weights = Weights(learner.parameters)
        for _ in range(150):
            learner.update(collector.collect(weights))
            weights.publish(learner.parameters)
            if collector.collect(weights).stats.mean_length >= 500:
                judge = Collector(env, spec, n_envs=256, n_steps=1000, seed=1000, update_moments=False)
                judge.set_moments(collector.moments[0])
                length = judge.collect(weights).stats.mean_length
                if length > 498:
                    progress(f"a policy with episodes of {length:.1f} steps, seed {seed}")
                    return weights.read()[0], judge.moments[0]
    raise BenchError("PPO found no policy that keeps the pole up")


def measure(parameters: Floats, moments: Moments | None, seconds: float, threads: int | None) -> dict[str, Any]:
    """Collects of `N_ENVS` x `N_STEPS` steps for `seconds`, after one that is not counted."""
    env = make_env(ENV)
    collector = Collector(env, n_envs=N_ENVS, n_steps=N_STEPS, threads=threads)
    if moments is not None:
        collector.set_moments(moments)
    weights = Weights(parameters)
    collector.collect(weights)
    took_s: list[float] = []
    episodes, lengths, returns = 0, 0.0, 0.0
    while sum(took_s) < seconds or len(took_s) % 4:  # whole episodes where all have 500 steps
        began_s = time.perf_counter()
        stats = collector.collect(weights).stats
        took_s.append(time.perf_counter() - began_s)
        episodes += stats.episodes
        lengths += stats.lengths.sum()
        returns += stats.returns.sum()
    steps = N_ENVS * N_STEPS
    return {
        "episodes_s": episodes / sum(took_s),
        "mean_length": lengths / episodes,
        "mean_return": returns / episodes,
        "steps_s": steps * len(took_s) / sum(took_s),
        "steps_s_best": steps / min(took_s),
        "steps_s_median": steps / median(took_s),
        "samples_trained_s": 0,
        "policy_lag": 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peer-python", help="a Python that has the peers; default: one is made under .cache")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    args = parser.parse_args()
    warn_if_busy()
    parameters, moments = pole_up()
    fresh = initial(mlp_for(make_env(ENV).spec), 0)
    measured = {
        "headrace, pole up": measure(parameters, moments, args.seconds, None),
        "headrace, pole up, 1 thread": measure(parameters, moments, args.seconds, 1),
        "headrace, random": measure(fresh, None, args.seconds, None),
    }
    if not args.no_peers:
        python = args.peer_python or str(make_venv(ROOT / ".cache" / "bench" / "pipeline", PEERS))
        script = str(Path(__file__).with_name("peers_pipeline.py"))
        for name in ("gymnasium", "envpool"):
            done = subprocess.run([python, script, name], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise BenchError(f"{name}: ended with {done.returncode}:\n{done.stderr[-2000:]}")
            measured[f"{name} + torch, random"] = json.loads(done.stdout.splitlines()[-1])
            progress(f"{name}: {measured[f'{name} + torch, random']['steps_s']:,.0f} steps/s")
    up, random = measured["headrace, pole up"], measured["headrace, random"]
    if not args.json:
        rows = [
            [
                name,
                f"{m['episodes_s']:,.0f}",
                f"{m['mean_length']:.1f}",
                f"{m['mean_return']:.1f}",
                f"{m['steps_s']:,.0f}",
            ]
            for name, m in measured.items()
        ]  # fmt: skip
        print(table(["CartPole pipeline", "episodes/s", "mean length", "mean return", "steps/s"], rows))
        print(f"{N_ENVS} environments x {N_STEPS} steps a collect; policy lag 0, samples trained/s 0")
    result = {
        "machine": machine(),
        "pipeline_episodes_s": up["episodes_s"],
        "pipeline_mean_length": up["mean_length"],
        "pipeline_steps_s": up["steps_s"],
        "pipeline_random_episodes_s": random["episodes_s"],
        "pipeline_random_mean_length": random["mean_length"],
        "pipeline": measured,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
