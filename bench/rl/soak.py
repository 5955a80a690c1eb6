"""Training without end while its worker processes are killed, hang and raise; every episode is accounted for.

    python bench/rl/soak.py --minutes 10 [--workers 2] [--envs 16] [--kill-every 2] [--json]

PPO learns from Python environments in worker processes. Their rewards and lengths follow a rule that can be checked
from outside, so each episode in the statistics is looked up in the trajectories: none may be lost, counted twice or
made up, and those that a fault cut must be as many as were counted as faults. Faults come more often than in a bad
year. Memory (proportional, of all processes), descriptors, shared memory and processes must be as many at the end as
after the first minute. The exit status is 1 when any of that does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import machine, progress
from headrace.rl.learners.ppo import NativePpo, PpoConfig
from headrace.rl.policy import Weights, initial
from headrace.rl.trajectory import Trajectory
from headrace.rl.workers.collect import WorkerCollector
from headrace.rl.workers.restarts import RestartPolicy
from headrace.rl.workers.vector import ProcessVectorEnv


class Ruled(gymnasium.Env):
    """Episode n of environment i lasts 5 + (7 n + i) % 23 steps, each with a reward of 1 + n % 5. Now and then it hangs
    or raises."""

    observation_space = spaces.Box(-1e6, 1e6, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, number: int, delay_s: float) -> None:
        self.number, self.delay_s, self.episode = number, delay_s, -1
        self.random = random.Random(os.getpid() * 1000 + number)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode, self.steps = self.episode + 1, 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        luck = self.random.random()
        if luck < 2e-5:
            time.sleep(3600)
        if luck < 2e-4:
            raise ValueError("as it happens")
        time.sleep(self.delay_s)
        self.steps += 1
        over = self.steps >= 5 + (7 * self.episode + self.number) % 23
        return self._look(), float(1 + self.episode % 5), over, False, {}

    def _look(self) -> Any:
        return np.array([self.number, self.episode % 100, self.steps, 1.0], np.float32)


class Ledger:
    """Episodes as the trajectories show them, beside those in the statistics."""

    def __init__(self, n: int) -> None:
        self.total, self.length = np.zeros(n), np.zeros(n, np.int64)
        self.whole = self.cut = self.steps = 0
        self.violations: list[str] = []

    def account(self, out: Trajectory, lost: int) -> None:
        """`lost`: episodes that were counted as cut by a fault meanwhile."""
        seen: Counter[tuple[float, int]] = Counter()
        cut = 0
        for rewards, terminated, truncated in zip(out.rewards, out.terminated, out.truncated, strict=True):
            self.total += rewards
            self.length += 1
            for env in np.flatnonzero(terminated | truncated).tolist():
                if terminated[env]:
                    seen[float(self.total[env]), int(self.length[env])] += 1
                else:
                    cut += 1  # of its own accord no episode is truncated
                self.total[env], self.length[env] = 0.0, 0
        stats = out.stats
        told = Counter(zip(stats.returns.tolist(), stats.lengths.tolist(), strict=True))
        if told != seen:
            self.violations.append(f"episodes told {told - seen} that were not, and not told {seen - told}")
        for total, length in seen:
            if not 5 <= length <= 27 or total / length not in (1, 2, 3, 4, 5):
                self.violations.append(f"an episode of {length} steps and return {total}")
        if cut != lost:
            self.violations.append(f"{cut} episodes were cut, {lost} counted as lost")
        self.whole += stats.episodes
        self.cut += cut
        self.steps += out.rewards.size


def held() -> dict[str, float]:
    """What this process and its children hold."""
    pids = [os.getpid()]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            pids.append(int(path.parent.name))
    pss = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        pss += int(text.partition("Pss:")[2].split()[0])
    segments = sum("headrace" in name for name in os.listdir("/dev/shm"))
    return {"pss_mb": pss / 1024, "fds": len(os.listdir("/proc/self/fd")), "segments": segments, "processes": len(pids)}


def kill_now_and_then(env: ProcessVectorEnv, every_s: float, ended: threading.Event, killed: list[float]) -> None:
    rng = random.Random(0)
    while not ended.wait(rng.uniform(0.2, 1.8) * every_s):
        pids = [pid for pid in env.pool.pids if pid is not None]
        if pids:
            try:
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed.append(time.monotonic())
            except ProcessLookupError:
                pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="seconds between kills, on average")
    parser.add_argument("--delay", type=float, default=0.0005, metavar="S", help="that a step takes")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    args = parser.parse_args()
    env = ProcessVectorEnv(
        [partial(Ruled, number, args.delay) for number in range(args.envs)],
        workers=args.workers,
        autoreset_mode="SameStep",
        infos=False,
        step_timeout_s=2.0,
        restarts=RestartPolicy(limit=1_000_000, window_s=1.0, backoff_s=0.01),
    )
    collector = WorkerCollector(env, n_steps=64)
    learner = NativePpo(collector.spec, PpoConfig(), initial(collector.spec, 0), threads=1)
    weights, ledger = Weights(learner.parameters), Ledger(args.envs)
    ended, killed = threading.Event(), []
    killer = threading.Thread(target=kill_now_and_then, args=(env, args.kill_every, ended, killed), daemon=True)
    began_s = told_s = time.monotonic()
    samples: list[tuple[float, dict[str, float]]] = []
    lost = 0
    killer.start()
    try:
        while (now_s := time.monotonic()) < began_s + 60 * args.minutes and not ledger.violations:
            trajectory = collector.collect(weights)
            ledger.account(trajectory, env.tally.lost_episodes - lost)
            lost = env.tally.lost_episodes
            learner.update(trajectory, 0.0)
            weights.publish(learner.parameters)
            if now_s >= told_s:
                told_s = now_s + min(10.0, 6 * args.minutes)
                samples.append(((now_s - began_s) / 60, held()))
                progress(
                    f"{(now_s - began_s) / 60:5.1f} min: {ledger.whole:,} episodes, {ledger.cut:,} cut, {len(killed)} "
                    f"kills, {samples[-1][1]['pss_mb']:.0f} MB"
                )
    finally:
        ended.set()
        killer.join()
        env.close()
    warm = [sample for sample in samples if sample[0] >= min(1.0, args.minutes / 3)] or samples
    times, memory = [at for at, _ in warm], [found["pss_mb"] for _, found in warm]
    slope = float(np.polyfit(times, memory, 1)[0]) if len(warm) > 2 else 0.0
    for name in ("fds", "segments", "processes"):
        first, last = warm[0][1][name], warm[-1][1][name]
        if last > first + 2:
            ledger.violations.append(f"{name}: {first:.0f} after the first minute, {last:.0f} at the end")
    if len(warm) > 2 and slope * args.minutes > 0.2 * memory[0] and memory[-1] > memory[0] + 50:
        ledger.violations.append(f"memory grew from {memory[0]:.0f} to {memory[-1]:.0f} MB")
    result = {
        "bench": "rl/soak",
        "machine": machine(),
        "minutes": round((time.monotonic() - began_s) / 60, 2),
        "steps": ledger.steps,
        "episodes": ledger.whole,
        "cut": ledger.cut,
        "kills": len(killed),
        "faults": dict(env.tally.faults),
        "restarts": dict(env.tally.restarts),
        "pss_mb": [round(memory[0], 1), round(memory[-1], 1)],
        "pss_mb_per_min": round(slope, 3),
        "held": [warm[0][1], warm[-1][1]],
        "violations": ledger.violations,
    }
    print(json.dumps(result))
    return 1 if ledger.violations else 0


if __name__ == "__main__":
    sys.exit(main())
