"""Learning from replayed steps, DQN and SAC: environments are stepped, what happened is remembered, and drawn again.

    act -> step -> push -> sample -> learn

What there is between two updates is all in `state()` and in the memory, so going on from both gives the same bits where
the environments are compiled ones. Importing this module imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, StageFailed, Unavailable
from headrace.rl.algorithms.algorithm import Evaluation, Update
from headrace.rl.algorithms.experience import Source
from headrace.rl.algorithms.play import play
from headrace.rl.buffers import Field, NStep, PrioritisedReplay, ReplayBuffer
from headrace.rl.checkpoint import Checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.evaluate import EVALUATION_SEED
from headrace.rl.learners.dqn import DqnLearner
from headrace.rl.learners.dqn_settings import DqnConfig
from headrace.rl.learners.off_policy import Minibatch
from headrace.rl.learners.sac import SacLearner
from headrace.rl.learners.sac_settings import SacConfig
from headrace.rl.networks.threads import torch_threads
from headrace.rl.normalise import Moments, Normaliser
from headrace.rl.policy import Floats
from headrace.rl.spec import Box, Discrete, EnvSpec

__all__ = ["OffPolicy", "env_actions", "make_learner"]

MakeSource = Callable[[int], Source]


def make_learner(config: TrainConfig, spec: EnvSpec) -> DqnLearner | SacLearner:
    """The learner of a config. Raises `ConfigError` where it cannot learn in such an environment."""
    settings = config.learner
    network: dict[str, Any] = {"hidden": config.hidden, "activation": config.activation, "seed": config.seed}
    if isinstance(settings, DqnConfig):
        if not isinstance(spec.action, Discrete):
            raise ConfigError(f"algo: dqn chooses one of n actions, {spec.id} takes {spec.action}; try sac or ppo")
        return DqnLearner(spec.obs_size, spec.action.n, settings, **network)
    if not isinstance(settings, SacConfig):
        raise ConfigError(f"algo: expected dqn or sac, got {config.algo}")
    if not isinstance(spec.action, Box) or not spec.action.bounded:
        raise ConfigError(f"algo: sac needs actions in a bounded box, {spec.id} takes {spec.action}; try dqn or ppo")
    return SacLearner(spec.obs_size, spec.action_size, settings, **network)


def env_actions(spec: EnvSpec, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Actions of a learner as the environment takes them: numbers in -1 … 1 between the bounds of a Box."""
    space = spec.action
    if not isinstance(space, Box):
        return actions
    low, high = space.low.ravel(), space.high.ravel()
    return np.clip(low + (actions + 1.0) * (0.5 * (high - low)), low, high).reshape(len(actions), *space.shape)


class OffPolicy:
    """A run of DQN or SAC; `n_steps` steps of all environments an update, learning in between.

    Args:
        make_source: So many environments; called for training, and again for evaluation.

    Raises `ConfigError` for an environment that the algorithm cannot learn in, and for settings it has no use for.
    """

    def __init__(self, config: TrainConfig, make_source: MakeSource) -> None:
        if config.normalise_reward:
            raise ConfigError(f"normalise_reward: {config.algo} learns from rewards as they are; expected false")
        self.config, self._make_source = config, make_source
        self.settings: DqnConfig | SacConfig = config.learner
        self.source = make_source(config.n_envs)
        self._judges: Source | None = None
        self.env_spec = self.source.env_spec
        try:
            self.learner = make_learner(config, self.env_spec)
        except BaseException:
            self.source.close()
            raise
        self._rng = np.random.default_rng(config.seed)
        self._moments = Moments.zeros(self.env_spec.obs_size)
        self._normaliser: Normaliser | None = None
        self._obs = self.source.reset(config.seed).copy()
        self._steps = 0
        self._remember(self._new_memory())

    # -- memory --------------------------------------------------------------------------------------------------------

    def _new_memory(self) -> ReplayBuffer:
        spec, settings = self.env_spec, self.settings
        discrete = isinstance(spec.action, Discrete)
        fields = [
            Field("obs", (spec.obs_size,)),
            Field("action", () if discrete else (spec.action_size,), np.int64 if discrete else np.float32),
            Field("reward"),
            Field("next_obs", (spec.obs_size,)),
            Field("discount"),
        ]
        if settings.prioritised:
            return PrioritisedReplay(fields, settings.replay, seed=self.config.seed, alpha=settings.priority_alpha)
        return ReplayBuffer(fields, settings.replay, seed=self.config.seed)

    def _remember(self, memory: ReplayBuffer) -> None:
        """Use `memory` from now on, with no chains open."""
        self.memory = memory
        self._chains = NStep(memory, self.config.n_envs, self.settings.n_step, self.settings.gamma)
        self._batch = memory.new_batch(self.settings.batch)
        arrays = [*(self._batch[name] for name in Minibatch._fields[:-1]), self._batch.weights]
        self._rows = Minibatch(*(torch.from_numpy(array) for array in arrays))

    def save_memory(self, path: Path) -> None:
        """Write what is remembered, beside a checkpoint of the same moment. Raises `Unavailable` where that cannot
        be."""
        try:
            self.memory.save(path)
        except OSError as error:
            raise Unavailable(f"replay memory {path}: cannot be written: {error.strerror}") from error

    def load_memory(self, path: Path) -> None:
        """Remember what `save_memory` wrote; before `load`. Raises `NotFound`, `IntegrityError`, and `InvalidInput` for
        rows of another kind."""
        kind = PrioritisedReplay if self.settings.prioritised else ReplayBuffer
        memory = kind.load(path)
        if (memory.fields, memory.capacity) != (self.memory.fields, self.memory.capacity):
            raise InvalidInput(
                f"{path}: expected {self.memory.capacity} rows of {self.memory.note}, got {memory.capacity} of "
                f"{memory.note}"
            )
        self._remember(memory)

    # -- a run ---------------------------------------------------------------------------------------------------------

    def update(self, progress: float, ctx: Context | None = None) -> Update:
        """Take `n_steps` steps in every environment (fewer, but at least one, when `ctx` ends meanwhile) and learn
        where it is time. Statistics of observations are brought up to date afterwards.

        Raises the error of `ctx` where it has ended, `StageFailed` for a loss that is not finite, and what the
        environments are at fault for.
        """
        if ctx is not None:
            ctx.check()
        with torch_threads(self.config.threads):
            return self._update(progress, ctx)

    def _update(self, progress: float, ctx: Context | None) -> Update:
        began_s, learn_s, first = time.perf_counter(), 0.0, self._steps
        seen: list[Floats] = []
        told: list[dict[str, float]] = []
        for _ in range(self.config.n_steps):
            if ctx is not None and ctx.error is not None and self._steps > first:
                break
            if self.config.normalise_obs:
                seen.append(self._obs.copy())
            self._step(ctx)
            learning_s = time.perf_counter()
            while self._due > self.learner.updates and len(self.memory) >= self.settings.batch:
                told.append(self._learn(progress))
            learn_s += time.perf_counter() - learning_s
        if seen:
            self._moments.update(np.stack(seen))
            self._normaliser = Normaliser.of(self._moments)
        losses = {name: float(np.mean([one[name] for one in told])) for name in (told[0] if told else ())}
        if isinstance(self.settings, DqnConfig):
            losses["epsilon"] = self.settings.epsilon(self._steps)
        took_s = time.perf_counter() - began_s
        return Update(
            steps=self._steps - first,
            stats=self.source.ended(),
            losses=losses,
            collect_s=took_s - learn_s,
            learn_s=learn_s,
            lag=0,
        )

    @property
    def _due(self) -> int:
        """How many minibatches should have been learnt from by now."""
        settings = self.settings
        return max(0, self._steps - settings.learning_starts) // settings.train_every * settings.updates

    def _step(self, ctx: Context | None) -> None:
        if self._steps < self.settings.learning_starts:
            actions = self.learner.random(self.config.n_envs, self._rng)
        else:
            actions = self.learner.explore(self._seen(self._obs), self._rng, self._steps)
        step = self.source.step(env_actions(self.env_spec, actions), ctx)
        self._chains.push(
            obs=self._obs,
            action=actions,
            reward=step.reward,
            next_obs=step.obs,
            final_obs=step.final_obs,
            terminated=step.terminated,
            truncated=step.truncated,
            active=~step.lost,
        )
        for stream in np.flatnonzero(step.lost).tolist():
            self._chains.discard(stream)
        self._obs[:] = step.obs
        self._steps += self.config.n_envs

    def _learn(self, progress: float) -> dict[str, float]:
        memory, rows = self.memory, self._rows
        if isinstance(memory, PrioritisedReplay):
            memory.sample(out=self._batch, beta=self.settings.beta(progress))
        else:
            memory.sample(out=self._batch)
        if self._normaliser is not None:
            rows = rows._replace(obs=self._seen(self._batch["obs"]), next_obs=self._seen(self._batch["next_obs"]))
        try:
            told = self.learner.update(rows, self._rng, progress)
        except InvalidInput as error:
            raise StageFailed("learn", f"{error}, after {self._steps} steps") from error
        if isinstance(memory, PrioritisedReplay):
            memory.update_priorities(self._batch, told.errors)
        return told.losses

    def _seen(self, obs: Floats) -> torch.Tensor:
        """Observations as the networks take them."""
        return torch.from_numpy(obs if self._normaliser is None else self._normaliser(obs))

    def evaluate(self, episodes: int, seed: int) -> Evaluation:
        """Whole greedy episodes, in environments of their own, on seeds that training does not use."""
        if self._judges is None:
            self._judges = self._make_source(episodes)
        with torch_threads(self.config.threads):
            return play(self._judges, self._greedy, episodes, seed + EVALUATION_SEED)

    def _greedy(self, obs: Floats) -> npt.NDArray[Any]:
        return env_actions(self.env_spec, self.learner.greedy(self._seen(obs)))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self) -> Checkpoint:
        """All but the memory."""
        moments = self._moments
        arrays: dict[str, npt.NDArray[Any]] = {
            "obs_count": np.array([moments.count]),
            "obs_mean": moments.mean,
            "obs_m2": moments.m2,
        }
        for name, parts in (
            ("learner", self.learner.state()),
            ("envs", self.source.state()),
            ("chains", self._chains.state()),
        ):
            arrays |= {f"{name}.{key}": array for key, array in parts.items()}
        return Checkpoint(arrays, {"steps": self._steps, "rng": self._rng.bit_generator.state})

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a `state()` of the same settings. Environments in other processes begin new episodes. Raises
        `InvalidInput` for one that does not fit."""
        parts: dict[str, dict[str, Any]] = {"learner": {}, "envs": {}, "chains": {}, "": {}}
        for name, array in checkpoint.arrays.items():
            kind, dot, rest = name.partition(".")
            parts[kind if dot else ""][rest or kind] = array
        own = parts[""]
        self.learner.load(parts["learner"])
        self._steps = int(checkpoint.facts["steps"])
        self._rng.bit_generator.state = checkpoint.facts["rng"]
        self._moments = Moments(float(own["obs_count"][0]), own["obs_mean"], own["obs_m2"]).copy()
        self._normaliser = Normaliser.of(self._moments) if self.config.normalise_obs and self._moments.count else None
        obs = self.source.load(parts["envs"])
        if obs is None:
            obs = self.source.reset(self.config.seed + self._steps)
        else:
            self._chains.restore(parts["chains"])
        self._obs = obs.copy()

    def close(self) -> None:
        """End the environments and forget what was remembered."""
        self.source.close()
        if self._judges is not None:
            self._judges.close()
        self.memory.unlink()
