"""Ten thousand discs in a box that is tilted: they bounce off walls and each other; the tilt is the action.

Discs are soft: two that overlap push each other apart by a damped spring (the distinct element method). Who may touch
whom comes out of a list of cells as wide as a disc: discs are sorted by cell, so that the neighbours of one are three
short runs of the sorted arrays. Everything is float32, struct of arrays; the module in `headrace.rl.wasm` computes the
same.

Source: Cundall, Strack, "A discrete numerical model for granular assemblies", 1979; cell lists after Allen, Tildesley,
"Computer Simulation of Liquids", 1987.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.rl.envs.definition import Array, Env
from headrace.rl.envs.random import uniform
from headrace.rl.spec import Box

__all__ = ["GRID", "Particles", "particles"]

GRID = 8
"""The observation counts discs on so many by so many squares."""


class _Params(NamedTuple):
    """The box is 1 wide and high, a disc weighs 1."""

    tau: float = 0.002
    tilt: float = 4.0  # acceleration of a full tilt
    stiffness: float = 12_000.0
    damping: float = 20.0
    speed: float = 0.5  # of a disc at the beginning, at most


def particles(n: int, id: str, max_steps: int = 500) -> type[Env]:
    """The environment with `n` discs, which cover half of the box."""
    radius = math.sqrt(0.5 / (math.pi * n))
    width = np.float32(2 * radius)
    cells = int(1 / width)
    spots = math.isqrt(n - 1) + 1
    floats = Annotated[NDArray[np.float32], Array((n,), "float32")]
    ints = Annotated[NDArray[np.int32], Array((n,), "int32")]
    starts = Annotated[NDArray[np.int32], Array((cells * cells + 2,), "int32")]
    Places = NamedTuple(  # mypy wants the fields written out
        "Places",
        [
            ("corner_x", float),
            ("corner_y", float),
            *[(name, floats) for name in ("x", "y", "vx", "vy")],  # type: ignore[misc]
            ("cell", ints),  # of each disc
            ("order", ints),  # discs by cell, and within a cell by number
            ("start", starts),  # of each cell in that order; two more, for counting
            *[(name, floats) for name in ("sx", "sy", "svx", "svy")],  # places and velocities in that order
        ],
    )

    class Particles(Env):
        """Bring the discs to a corner by tilting their box; the reward is minus their mean distance from it.

        The observation counts discs on 8 x 8 squares (1 is what a square has when all are spread evenly), then gives
        the mean velocity and the corner (-1 or 1 along x and y).
        """

        observation = Box(-np.inf, np.inf, shape=(GRID * GRID + 4,))
        action = Box(-1.0, 1.0, shape=(2,))
        Params = _Params

        State = Places

        @staticmethod
        def reset(state: Any, rng: Any, params: Any) -> Any:
            for i in range(n):
                state.x[i] = np.float32((i % spots + 0.5) / spots)
                state.y[i] = np.float32((i // spots + 0.5) / spots)
                state.vx[i] = np.float32(uniform(rng, -params.speed, params.speed))
                state.vy[i] = np.float32(uniform(rng, -params.speed, params.speed))
            corner_x = 1.0 if uniform(rng, 0.0, 1.0) < 0.5 else -1.0
            corner_y = 1.0 if uniform(rng, 0.0, 1.0) < 0.5 else -1.0
            return Places(  # type: ignore[call-arg]
                corner_x, corner_y, state.x, state.y, state.vx, state.vy, state.cell, state.order, state.start,
                state.sx, state.sy, state.svx, state.svy,
            )  # fmt: skip

        @staticmethod
        def step(state: Any, action: Any, rng: Any, params: Any) -> Any:
            x, y, vx, vy, cell, start = state.x, state.y, state.vx, state.vy, state.cell, state.start
            start[:] = 0
            scale = np.float32(cells)
            for i in range(n):  # counting sort by cell
                column = min(max(int(x[i] * scale), 0), cells - 1)
                row = min(max(int(y[i] * scale), 0), cells - 1)
                cell[i] = row * cells + column
                start[cell[i] + 2] += 1
            for c in range(1, cells * cells + 1):
                start[c + 1] += start[c]
            for i in range(n):  # moves start[c + 1] from where cell c begins to where it ends
                at = start[cell[i] + 1]
                start[cell[i] + 1] += 1
                state.order[at] = i
                state.sx[at], state.sy[at], state.svx[at], state.svy[at] = x[i], y[i], vx[i], vy[i]
            tau = np.float32(params.tau)
            stiffness, damping = np.float32(params.stiffness), np.float32(params.damping)
            pull_x = np.float32(params.tilt * min(max(action[0], -1.0), 1.0))
            pull_y = np.float32(params.tilt * min(max(action[1], -1.0), 1.0))
            near = width * width
            low, high = np.float32(radius), np.float32(1) - np.float32(radius)
            total = 0.0
            for row in range(cells):
                for column in range(cells):
                    for a in range(start[row * cells + column], start[row * cells + column + 1]):
                        px, py, pvx, pvy = state.sx[a], state.sy[a], state.svx[a], state.svy[a]
                        ax, ay = pull_x, pull_y
                        for r in range(max(row - 1, 0), min(row + 1, cells - 1) + 1):
                            first = start[r * cells + max(column - 1, 0)]
                            for b in range(first, start[r * cells + min(column + 1, cells - 1) + 1]):
                                dx, dy = px - state.sx[b], py - state.sy[b]
                                square = dx * dx + dy * dy
                                if square < near and b != a:
                                    distance = np.sqrt(max(square, np.float32(1e-12)))
                                    nx, ny = dx / distance, dy / distance
                                    closing = (pvx - state.svx[b]) * nx + (pvy - state.svy[b]) * ny
                                    push = stiffness * (width - distance) - damping * closing
                                    ax += push * nx
                                    ay += push * ny
                        i = state.order[a]
                        ax += stiffness * max(low - px, np.float32(0)) - stiffness * max(px - high, np.float32(0))
                        ay += stiffness * max(low - py, np.float32(0)) - stiffness * max(py - high, np.float32(0))
                        vx[i], vy[i] = pvx + tau * ax, pvy + tau * ay
                        x[i], y[i] = px + tau * vx[i], py + tau * vy[i]
                        far_x, far_y = x[i] - np.float32(state.corner_x > 0), y[i] - np.float32(state.corner_y > 0)
                        total += math.sqrt(far_x * far_x + far_y * far_y)
            return state, -total / n, False

        @staticmethod
        def observe(state: Any, params: Any, out: Any) -> None:
            for k in range(GRID * GRID):
                out[k] = 0.0
            share = GRID * GRID / n
            mean_x = mean_y = 0.0
            for i in range(n):
                column = min(max(int(state.x[i] * GRID), 0), GRID - 1)
                row = min(max(int(state.y[i] * GRID), 0), GRID - 1)
                out[row * GRID + column] += share
                mean_x += float(state.vx[i])
                mean_y += float(state.vy[i])
            out[GRID * GRID] = mean_x / n
            out[GRID * GRID + 1] = mean_y / n
            out[GRID * GRID + 2] = state.corner_x
            out[GRID * GRID + 3] = state.corner_y

    Particles.id, Particles.max_steps = id, max_steps
    return Particles


Particles = particles(10_000, "headrace/Particles-v0")
