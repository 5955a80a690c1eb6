"""From settings to what learns by them."""

from __future__ import annotations

from headrace.core.extras import require
from headrace.rl.algorithms.algorithm import Algorithm
from headrace.rl.algorithms.experience import CompiledSource, Source
from headrace.rl.algorithms.on_policy import OnPolicy
from headrace.rl.algorithms.places import Place, find_place
from headrace.rl.config import TrainConfig
from headrace.rl.envs import CompiledEnv

__all__ = ["make_algorithm", "make_source"]


def make_algorithm(config: TrainConfig, place: Place | None = None) -> Algorithm:
    """What `config.algo` names, ready to learn in `place` (default: what `config.env` names).

    Raises `ConfigError` where the algorithm cannot learn in such an environment, `NotFound` for an environment that is
    not there, `MissingExtra` without what it takes.
    """
    found = find_place(config.env) if place is None else place
    if config.algo in ("ppo", "a2c"):
        return OnPolicy(config, found)
    if config.algo == "impala":
        from headrace.rl.algorithms.impala import Impala

        return Impala(config, found)
    require("torch", "torch")
    from headrace.rl.algorithms.off_policy import OffPolicy

    return OffPolicy(config, lambda n: make_source(config, found, n))


def make_source(config: TrainConfig, place: Place, n: int) -> Source:
    """`n` environments to step from Python; in other processes no more than `config.n_envs`."""
    if isinstance(place, CompiledEnv):
        return CompiledSource(place, n, threads=config.threads or None, bad_values=config.bad_values)
    from headrace.rl.algorithms.worker_source import WorkerSource, make_processes

    return WorkerSource(make_processes(config, place, min(n, config.n_envs)))
