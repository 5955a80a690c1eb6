"""IMPALA: actors collect all the time, with weights that may be some updates old, and the learner takes what is ready.

    actor threads -> full trajectories (bounded channel) -> learner -> weights, versioned -> actors

Actors wait while the channel is full, the learner while it is empty. How far behind a trajectory's policy is, its lag,
is at most the trajectories that wait and those under way. Runs are not reproducible: who is ready when decides.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.channel import Channel
from headrace.core.context import Context
from headrace.errors import Cancelled, ChannelClosed, ConfigError, StageFailed
from headrace.rl.algorithms.algorithm import Update
from headrace.rl.algorithms.on_policy import OnPolicy
from headrace.rl.algorithms.places import Place
from headrace.rl.checkpoint import Checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.learners.impala import ImpalaConfig
from headrace.rl.normalise import Moments
from headrace.rl.policy import Weights
from headrace.rl.rollout import Collector
from headrace.rl.trajectory import Trajectory

if TYPE_CHECKING:
    from headrace.rl.workers.collect import WorkerCollector

__all__ = ["Impala"]


class Impala(OnPolicy):
    """A run of IMPALA; the steps of one actor's environments an update. Actors begin with the first update.

    Raises `ConfigError` for fewer environments than actors, and for normalisation: each actor would have its own.
    """

    def __init__(self, config: TrainConfig, place: Place) -> None:
        settings = config.learner
        assert isinstance(settings, ImpalaConfig)
        for name in ("normalise_obs", "normalise_reward"):
            if getattr(config, name):
                raise ConfigError(
                    f"{name}: expected false with algo = 'impala', whose actors would each have their own"
                )
        if config.n_envs < settings.actors:
            raise ConfigError(f"n_envs: expected one for each of {settings.actors} actors, got {config.n_envs}")
        self._shares = [len(part) for part in np.array_split(np.arange(config.n_envs), settings.actors)]
        self._actors: list[Thread] = []
        self._full = Channel[tuple[Trajectory, int] | tuple[Exception, int]](settings.queue)
        self._empty = [Channel[Trajectory](2) for _ in self._shares]
        self._ctx = Context()
        super().__init__(config, place)
        others = [self._collect(n, self._seed(actor), 1) for actor, n in enumerate(self._shares[1:], 1)]
        self._collectors = [self.collector, *others]

    @property
    def _first_envs(self) -> int:
        return self._shares[0]

    def _seed(self, actor: int) -> int:
        return (self.config.seed + actor * 0x9E3779B97F4A7C15) % (1 << 62)

    def update(self, progress: float, ctx: Context | None = None) -> Update:
        """Take a trajectory and learn from it. Raises the error of `ctx` when that ends, `StageFailed` naming an actor
        that failed."""
        if not self._actors:
            self._begin()
        began_s = time.perf_counter()
        found, actor = self._full.recv(ctx=ctx)
        if isinstance(found, Exception):
            raise StageFailed(f"actor {actor}", f"{type(found).__name__}: {found}") from found
        received_s = time.perf_counter()
        losses = asdict(self.learner.update(found, progress))
        stats, lag = found.stats, self.weights.version - found.version
        self.weights.publish(self.learner.parameters)
        self._empty[actor].send(found)
        return Update(
            steps=found.rewards.size,
            stats=stats,
            losses={name: value for name, value in losses.items() if name not in ("steps", "stopped")},
            collect_s=received_s - began_s,
            learn_s=time.perf_counter() - received_s,
            lag=lag,
        )

    def _begin(self) -> None:
        for actor, collector in enumerate(self._collectors):
            for _ in range(2):  # one is learnt from while the other is filled
                self._empty[actor].send(Trajectory.empty(self.spec, collector.n_envs, self.config.n_steps))
            self._actors.append(Thread(target=self._act, args=(actor, collector), name=f"actor-{actor}", daemon=True))
        for thread in self._actors:
            thread.start()

    def _act(self, actor: int, collector: Collector | WorkerCollector) -> None:
        try:
            while True:
                out = self._empty[actor].recv(ctx=self._ctx)
                collector.collect(self.weights, out=out, ctx=self._ctx)
                self._full.send((out, actor), ctx=self._ctx)
        except (Cancelled, ChannelClosed):
            return
        except Exception as error:  # the learner's to tell
            try:
                self._full.send((error, actor), ctx=self._ctx)
            except (Cancelled, ChannelClosed):
                return

    def state(self) -> Checkpoint:
        """The learner's alone: going on begins new episodes."""
        state = self.learner.state()
        arrays = {f"learner.{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
        moments = Moments.zeros(self.spec.obs_size)
        arrays |= {
            "collector.obs_count": np.array([moments.count]),
            "collector.obs_mean": moments.mean,
            "collector.obs_m2": moments.m2,
        }
        return Checkpoint(arrays, {"learner": {name: value for name, value in state.items() if isinstance(value, int)}})

    def load(self, checkpoint: Checkpoint) -> None:
        """Before the first update. Raises `InvalidInput` for one that does not fit."""
        arrays = {name.partition(".")[2]: a for name, a in checkpoint.arrays.items() if name.startswith("learner.")}
        self.learner.load({**arrays, **checkpoint.facts["learner"]})
        self.weights = Weights(self.learner.parameters)

    def close(self) -> None:
        """Stop the actors, then end the environments."""
        self._ctx.cancel()
        for thread in self._actors:
            thread.join()
        for collector in self._collectors[1:]:
            if not isinstance(collector, Collector):
                collector.env.close()
        super().close()
