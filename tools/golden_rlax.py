"""What rlax makes of a trajectory with ends of both kinds: nothing in, tests/golden/rl/returns.json out.

Run it where rlax is installed (pip install rlax==0.1.9):

    python tools/golden_rlax.py

rlax knows no truncation, so each column is cut at its ends: a terminated piece ends with a discount of 0, a truncated
one with V of its last observation, the last one with V of the observation after the trajectory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import rlax

OUT = Path(__file__).resolve().parents[1] / "tests" / "golden" / "rl" / "returns.json"
STEPS, ENVS = 24, 6
GAMMA, LAMBDA, N_STEP = 0.97, 0.9, 4
CLIP_RHO, CLIP_PG_RHO = 1.2, 1.5


def trajectory() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(20)
    shape = (STEPS, ENVS)
    terminated = (rng.random(shape) < 0.1).astype(np.uint8)
    truncated = (rng.random(shape) < 0.1).astype(np.uint8)
    return {
        "rewards": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "final_values": (rng.normal(size=shape) * (truncated != 0)).astype(np.float32),
        "last_values": rng.normal(size=ENVS).astype(np.float32),
        "log_rhos": rng.normal(scale=0.7, size=shape).astype(np.float32),
    }


def pieces(data: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[slice, int, float, bool]]:
    """(steps, column, value behind the piece, whether it terminated) for each episode or part of one."""
    for column in range(ENVS):
        begin = 0
        for t in range(STEPS):
            over, cut = bool(data["terminated"][t, column]), bool(data["truncated"][t, column])
            if over or cut or t + 1 == STEPS:
                behind = data["final_values"][t, column] if cut and not over else data["last_values"][column]
                yield slice(begin, t + 1), column, 0.0 if over else float(behind), over
                begin = t + 1


def main() -> None:
    data = trajectory()
    names = ("advantages", "vtrace_targets", "vtrace_advantages", "n_step")
    found = {name: np.zeros((STEPS, ENVS), np.float32) for name in names}
    for steps, column, behind, over in pieces(data):
        rewards, values = jnp.asarray(data["rewards"][steps, column]), jnp.asarray(data["values"][steps, column])
        all_values = jnp.append(values, behind)
        discounts = np.full(len(rewards), GAMMA, np.float32)
        discounts[-1] = 0.0 if over else GAMMA
        found["advantages"][steps, column] = rlax.truncated_generalized_advantage_estimation(
            rewards, jnp.asarray(discounts), LAMBDA, all_values
        )
        rhos = jnp.exp(jnp.asarray(data["log_rhos"][steps, column]))
        traced = rlax.vtrace_td_error_and_advantage(
            values, all_values[1:], rewards, jnp.asarray(discounts), rhos, LAMBDA, CLIP_RHO, CLIP_PG_RHO
        )
        found["vtrace_targets"][steps, column] = traced.errors + values
        found["vtrace_advantages"][steps, column] = traced.pg_advantage
        found["n_step"][steps, column] = rlax.n_step_bootstrapped_returns(
            rewards, jnp.asarray(discounts), all_values[1:], N_STEP
        )
    settings = {"gamma": GAMMA, "lam": LAMBDA, "n": N_STEP, "clip_rho": CLIP_RHO, "clip_pg_rho": CLIP_PG_RHO}
    content = {
        "settings": settings,
        "trajectory": {name: array.tolist() for name, array in data.items()},
        "rlax": {name: array.tolist() for name, array in found.items()},
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
