"""Runs of learning from replayed steps, small ones."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.rl.algorithms.experience import CompiledSource
from headrace.rl.algorithms.off_policy import OffPolicy
from headrace.rl.config import TrainConfig
from headrace.rl.envs import make_env

QUICK = {"n_envs": 4, "n_steps": 16, "threads": 1, "total_steps": 20_000, "normalise_obs": False, "activation": "relu"}


def config(algo: str, changes: dict[str, Any] | None = None, **learner: Any) -> TrainConfig:
    return msgspec.convert({"env": "-", "algo": algo, algo: learner, **QUICK, **(changes or {})}, TrainConfig)


def run_of(env: Any, settings: TrainConfig) -> OffPolicy:
    compiled = make_env(env) if isinstance(env, str) else env
    return OffPolicy(settings, lambda n: CompiledSource(compiled, n, threads=1, bad_values=settings.bad_values))


def rows_of(run: OffPolicy) -> dict[str, Any]:
    first, end = run.memory.window
    return run.memory.gather(np.arange(first, end) % run.memory.capacity).rows
