"""A frame of 10,000 colliding discs: compiled Python, the same in WebAssembly, and NumPy.

    python bench/rl/particles.py [--frames 100] [--json]

All three compute the same forces by a list of cells; NumPy takes the neighbours of all discs at once, cell by cell
around them. One thread each; medians.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import machine, table
from headrace.rl.envs import make_env
from headrace.rl.envs.batch import BatchEnv
from headrace.rl.envs.particles import Particles
from headrace.rl.wasm import PARTICLES, WasmEnv

N = 10_000
PARAMS = Particles.Params()


class NumPyDiscs:
    """The environment's dynamics in float32 NumPy."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        spots = math.isqrt(N - 1) + 1
        i = np.arange(N)
        self.place = np.stack([(i % spots + 0.5) / spots, (i // spots + 0.5) / spots], 1).astype(np.float32)
        self.velocity = rng.uniform(-PARAMS.speed, PARAMS.speed, (N, 2)).astype(np.float32)
        self.radius = math.sqrt(0.5 / (math.pi * N))
        self.cells = int(1 / (2 * self.radius))

    def step(self, action: np.ndarray) -> None:
        place, velocity, cells, width = self.place, self.velocity, self.cells, np.float32(2 * self.radius)
        at = np.clip((place * cells).astype(np.int32), 0, cells - 1)
        cell = at[:, 1] * cells + at[:, 0]
        order = np.argsort(cell, kind="stable")
        start = np.searchsorted(cell[order], np.arange(cells * cells + 1))
        force = np.tile((PARAMS.tilt * action).astype(np.float32), (N, 1))
        fullest = int(np.diff(start).max())
        for dy, dx in product((-1, 0, 1), repeat=2):
            column, row = at[:, 0] + dx, at[:, 1] + dy
            inside = (column >= 0) & (column < cells) & (row >= 0) & (row < cells)
            beside = np.where(inside, row * cells + column, 0)
            for k in range(fullest):
                i = np.flatnonzero(inside & (start[beside] + k < start[beside + 1]))
                j = order[start[beside[i]] + k]
                i, j = i[i != j], j[i != j]
                offset = place[i] - place[j]
                distance = np.sqrt((offset * offset).sum(axis=1))
                near = distance < width
                i, j, offset, distance = i[near], j[near], offset[near], distance[near]
                normal = offset / distance[:, None]
                closing = ((velocity[i] - velocity[j]) * normal).sum(axis=1)
                force[i] += (PARAMS.stiffness * (width - distance) - PARAMS.damping * closing)[:, None] * normal
        walls = np.maximum(self.radius - place, 0) - np.maximum(place - (1 - self.radius), 0)
        velocity += np.float32(PARAMS.tau) * (force + np.float32(PARAMS.stiffness) * walls)
        place += np.float32(PARAMS.tau) * velocity


def frame_ms(step: Callable[[np.ndarray], object], frames: int) -> float:
    """Median over the frames after the first tenth, the box leaning this way and that."""
    times = []
    for frame in range(frames):
        action = np.array([math.sin(frame / 20), math.cos(frame / 31)], np.float32)
        began = time.perf_counter()
        step(action)
        times.append(time.perf_counter() - began)
    return median(times[frames // 10 :]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    env = make_env("headrace/Particles-v0")
    compiled = BatchEnv(env, 1, seed=0, threads=1)
    compiled.reset()
    wasm = WasmEnv(PARTICLES, env.spec).batch(1)
    wasm.reset()
    times = {
        "compiled": frame_ms(lambda action: compiled.step(action[None]), args.frames),
        "wasm": frame_ms(lambda action: wasm.step(action[None]), args.frames),
        "numpy": frame_ms(NumPyDiscs().step, max(args.frames // 5, 10)),
    }
    line = {f"{name}_ms": round(ms, 3) for name, ms in times.items()}
    line["numpy_over_compiled"] = round(times["numpy"] / times["compiled"], 1)
    line["wasm_over_compiled"] = round(times["wasm"] / times["compiled"], 2)
    if not args.json:
        rows = [[name, f"{ms:.2f}", f"{ms / times['compiled']:.1f}"] for name, ms in times.items()]
        print(table(["", "ms a frame", "x compiled"], rows))
    print(json.dumps({**line, "machine": machine()}))


if __name__ == "__main__":
    main()
