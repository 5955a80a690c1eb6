"""Learning from fresh steps with the native network, PPO and A2C: trajectories are collected, learnt from, forgotten.

Environments are compiled ones, stepped beside the policy in native code, or any of Gymnasium's in worker processes.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.rl.algorithms.algorithm import Evaluation, Update
from headrace.rl.algorithms.experience import Source
from headrace.rl.algorithms.places import Place
from headrace.rl.algorithms.play import play
from headrace.rl.checkpoint import Checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.envs import CompiledEnv
from headrace.rl.evaluate import EVALUATION_SEED, evaluate
from headrace.rl.learners.a2c import A2cConfig, NativeA2c
from headrace.rl.learners.impala import ImpalaConfig, NativeImpala
from headrace.rl.learners.ppo import NativePpo, PpoConfig
from headrace.rl.normalise import Normaliser
from headrace.rl.policy import Floats, Policy, Weights, initial, mlp_for
from headrace.rl.rollout import Collector
from headrace.rl.spec import Box, Discrete

if TYPE_CHECKING:
    from headrace.rl.workers.collect import WorkerCollector

__all__ = ["OnPolicy"]


_LEARNERS: dict[type[Any], Any] = {PpoConfig: NativePpo, A2cConfig: NativeA2c, ImpalaConfig: NativeImpala}


class OnPolicy:
    """A run of PPO or A2C; `n_steps` steps of all environments an update."""

    def __init__(self, config: TrainConfig, place: Place) -> None:
        self.config, self._place = config, place
        self._judges: Source | None = None
        self.collector = self._collect(self._first_envs, config.seed)
        self.spec = self.collector.spec
        self.env_spec = self.collector.env.spec if isinstance(self.collector, Collector) else self.collector.env_spec
        settings = config.learner
        self.learner = _LEARNERS[type(settings)](
            self.spec, settings, initial(self.spec, config.seed), seed=config.seed, threads=config.threads
        )
        self.weights = Weights(self.learner.parameters)

    @property
    def _first_envs(self) -> int:
        """How many environments `collector` has."""
        return self.config.n_envs

    def _collect(self, n_envs: int, seed: int, threads: int = 0) -> Collector | WorkerCollector:
        """A collector of so many environments."""
        config, place = self.config, self._place
        common: dict[str, Any] = {
            "n_steps": config.n_steps,
            "seed": seed,
            "normalise_obs": config.normalise_obs,
            "normalise_rewards": config.normalise_reward,
            "gamma": config.learner.gamma,
        }
        network: dict[str, Any] = {"hidden": tuple(config.hidden), "activation": config.activation}
        if isinstance(place, CompiledEnv):
            spec = mlp_for(place.spec, **network)
            threads = threads or config.threads
            return Collector(
                place, spec, n_envs=n_envs, threads=threads or None, bad_values=config.bad_values, **common
            )
        from headrace.rl.algorithms.worker_source import make_processes
        from headrace.rl.workers.collect import WorkerCollector
        from headrace.rl.workers.flatten import env_spec

        env = make_processes(config, place, n_envs)
        return WorkerCollector(env, mlp_for(env_spec(env.pool.spaces), **network), **common)

    def update(self, progress: float, ctx: Context | None = None) -> Update:
        """Collect and learn. Raises the error of `ctx` when that ends, `StageFailed` for an environment that gives no
        number, `InvalidInput` for a gradient that overflows."""
        began_s = time.perf_counter()
        trajectory = self.collector.collect(self.weights, ctx=ctx)
        collected_s = time.perf_counter()
        losses = asdict(self.learner.update(trajectory, progress))
        version = self.weights.publish(self.learner.parameters)
        return Update(
            steps=self.config.n_envs * self.config.n_steps,
            stats=trajectory.stats,
            losses={name: value for name, value in losses.items() if name not in ("steps", "stopped")},
            collect_s=collected_s - began_s,
            learn_s=time.perf_counter() - collected_s,
            lag=version - 1 - trajectory.version,
        )

    def evaluate(self, episodes: int, seed: int) -> Evaluation:
        moments = self.collector.moments[0] if self.config.normalise_obs else None
        if isinstance(self._place, CompiledEnv):
            return evaluate(
                self._place,
                self.spec,
                self.learner.parameters,
                moments=moments,
                episodes=episodes,
                seed=seed,
                threads=self.config.threads or None,
            )
        if self._judges is None:
            from headrace.rl.algorithms.worker_source import WorkerSource, make_processes

            self._judges = WorkerSource(make_processes(self.config, self._place, min(episodes, self.config.n_envs)))
        policy, parameters = Policy(self.spec), self.learner.parameters
        normaliser = None if moments is None else Normaliser.of(moments)

        def act(obs: Floats) -> npt.NDArray[Any]:
            seen = obs if normaliser is None else normaliser(obs)
            actions = policy.act(parameters, seen, greedy=True).actions
            space = self.env_spec.action
            if isinstance(space, Box):
                actions = np.clip(actions, space.low.ravel(), space.high.ravel())
            return actions[:, 0] if isinstance(space, Discrete) else actions

        return play(self._judges, act, episodes, seed + EVALUATION_SEED)

    def state(self) -> Checkpoint:
        arrays = {f"collector.{name}": array for name, array in self.collector.state_dict().items()}
        state = self.learner.state()
        arrays |= {f"learner.{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
        return Checkpoint(arrays, {"learner": {name: value for name, value in state.items() if isinstance(value, int)}})

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a `state()`; environments in other processes begin new episodes. Raises `InvalidInput` for one
        that does not fit."""
        parts: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}
        for name, array in checkpoint.arrays.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = array
        self.learner.load({**parts["learner"], **checkpoint.facts["learner"]})
        self.collector.load_state_dict(parts["collector"])
        self.weights = Weights(self.learner.parameters)

    def close(self) -> None:
        """End the environments."""
        if not isinstance(self.collector, Collector):
            self.collector.env.close()
        if self._judges is not None:
            self._judges.close()
