"""Gymnasium environments in processes, beside Gymnasium's AsyncVectorEnv (shared memory) and SyncVectorEnv.

    python bench/rl/workers.py [--envs 16] [--seconds 2] [--rounds 3] [--json]

* CartPole, Pendulum, LunarLander: random actions, all environments in every step; Headrace has one process per CPU,
  AsyncVectorEnv one per environment (it knows no other way).
* uneven: an environment that waits, 1 ms in most steps and 20 ms in one of 20, as a simulator on another machine would.
  Both have a process for each; Headrace once in lockstep and once with `recv(1)`, which waits for nobody.
* replaced: seconds from kill -9 of a worker to the next answer of an environment that was in it.

EnvPool runs only environments written for it in C++, so it has no line here. Medians of rounds that alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import machine, median, progress, table, warn_if_busy
from headrace.rl.workers.vector import ProcessVectorEnv

NAMES = ("CartPole-v1", "Pendulum-v1", "LunarLander-v3")


class Uneven(gymnasium.Env):
    """Waits, each copy at its own times."""

    observation_space = spaces.Box(-1, 1, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.random = random.Random(seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.020 if self.random.random() < 0.05 else 0.001)
        return np.zeros(8, np.float32), 1.0, False, False, {}


def lockstep(env: VectorEnv, seconds: float) -> float:
    """Steps of single environments a second."""
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]
    for action in actions:
        env.step(action)
    began_s, rounds = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        for action in actions[:16]:
            env.step(action)
        rounds += 16
    return env.num_envs * rounds / (time.perf_counter() - began_s)


def unhurried(env: ProcessVectorEnv, seconds: float) -> float:
    """The same, each environment at its own pace."""
    env.async_reset(seed=0)
    env.action_space.seed(0)
    actions = np.asarray(env.action_space.sample())
    began_s, steps = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        ready = env.recv(1)
        steps += len(ready.ids)
        env.send(actions[ready.ids], ready.ids)
    return steps / (time.perf_counter() - began_s)


def compared(makers: dict[str, Callable[[], tuple[Any, Callable[[Any, float], float]]]], args: Any) -> dict[str, float]:
    found: dict[str, list[float]] = {label: [] for label in makers}
    for _ in range(args.rounds):
        for label, make in makers.items():
            env, measure = make()
            found[label].append(measure(env, args.seconds))
            env.close()
    return {label: median(values) for label, values in found.items()}


def replaced_s() -> float:
    with ProcessVectorEnv.make("CartPole-v1", 2, workers=2) as env:
        env.reset(seed=0)
        took = []
        for _ in range(5):
            pid = env.pool.pids[0]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            began_s = time.perf_counter()
            cut = False
            while not cut:
                cut = bool(env.step(np.zeros(2, np.int64))[3][0])
            env.step(np.zeros(2, np.int64))  # its next episode begins
            took.append(time.perf_counter() - began_s)
        return median(took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    args = parser.parse_args()
    warn_if_busy()
    n, cpus = args.envs, min(args.envs, len(os.sched_getaffinity(0)))
    measured = {}
    for name in NAMES:
        progress(f"  {name}")
        fns = [partial(gymnasium.make, name)] * n
        measured[name] = compared(
            {
                "headrace": lambda fns=fns: (ProcessVectorEnv(fns, workers=cpus), lockstep),
                "AsyncVectorEnv": lambda fns=fns: (AsyncVectorEnv(fns, shared_memory=True), lockstep),
                "SyncVectorEnv": lambda fns=fns: (SyncVectorEnv(fns), lockstep),
            },
            args,
        )
    progress("  uneven")
    measured["uneven"] = compared(
        {
            "headrace": lambda: (ProcessVectorEnv([Uneven] * n, workers=n), lockstep),
            "headrace, recv(1)": lambda: (ProcessVectorEnv([Uneven] * n, workers=n), unhurried),
            "AsyncVectorEnv": lambda: (AsyncVectorEnv([Uneven] * n, shared_memory=True), lockstep),
        },
        args,
    )
    ratios = {name: found["headrace"] / found["AsyncVectorEnv"] for name, found in measured.items()}
    ratios["uneven"] = measured["uneven"]["headrace, recv(1)"] / measured["uneven"]["AsyncVectorEnv"]
    result = {
        "bench": "rl/workers",
        "machine": machine(),
        "envs": n,
        "workers_ratio_async_vector": round(min(ratios.values()), 2),
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "steps_s": {name: {label: round(value) for label, value in found.items()} for name, found in measured.items()},
        "replaced_s": round(replaced_s(), 3),
    }
    if not args.json:
        labels = ["headrace", "headrace, recv(1)", "AsyncVectorEnv", "SyncVectorEnv"]
        rows = [
            [name, *(f"{found[label]:,.0f}" if label in found else "-" for label in labels), f"{ratios[name]:.1f}"]
            for name, found in measured.items()
        ]
        print(table([f"{n} environments, steps/s", *labels, "x AsyncVectorEnv"], rows))
        print(f"a killed worker is replaced in {result['replaced_s']:.2f} s")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
