"""Trained policies: the folder or checkpoint of a run in, what acts in its environment out.

policy = load_policy(Path("runs/CartPole"))
actions = policy.act(observations)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.errors import InvalidInput, LoadFailed, NotFound
from headrace.rl.checkpoint import Checkpoint, load_checkpoint
from headrace.rl.config import TrainConfig, load_config
from headrace.rl.envs import make_env
from headrace.rl.normalise import Moments, Normaliser
from headrace.rl.policy import Floats, MlpSpec, Policy, mlp_for
from headrace.rl.spec import Box, EnvSpec
from headrace.rl.spec_facts import spec_of

__all__ = ["NativeGreedy", "SavedPolicy", "find_checkpoint", "load_policy", "read_run"]


class SavedPolicy(Protocol):
    """A trained policy that takes the action it thinks best. One call at a time."""

    env_spec: EnvSpec
    config: TrainConfig

    def reset(self, n: int) -> None:
        """Begin with `n` environments; before the first `act`, and when their number changes."""

    def act(self, obs: Floats, begins: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[Any]:
        """Actions, `env_spec.actions_shape(n)`, for raw observations float32[n, obs_size]. `begins` (bool[n]): which
        are the first of an episode, for policies that remember. Raises `InvalidInput` for another shape or dtype."""


def find_checkpoint(path: Path) -> Path:
    """A checkpoint, or in a run's folder the best one, else the last. Raises `NotFound`."""
    if path.is_dir():
        for name in ("best.ckpt", "last.ckpt"):
            if (path / name).is_file():
                return path / name
        raise NotFound(f"{path}: expected the folder of a run, there is no best.ckpt or last.ckpt")
    if not path.is_file():
        raise NotFound(f"{path}: no such run or checkpoint")
    return path


def read_run(path: Path) -> tuple[Checkpoint, TrainConfig, EnvSpec]:
    """A checkpoint of training, the settings it was made with, its environment's facts. Raises `LoadFailed` and
    `IntegrityError` as `load_checkpoint` does."""
    found = load_checkpoint(path)
    if found.facts.get("kind") != "training":
        raise LoadFailed(f"{path}: expected a checkpoint of training, it is of {found.facts.get('kind')!r}")
    config = load_config(None, **found.facts["config"])
    facts: Mapping[str, Any] | None = found.facts.get("env")
    return found, config, make_env(config.env).spec if facts is None else spec_of(facts)


def load_policy(path: Path) -> SavedPolicy:
    """The policy of a run's folder, or of a `.ckpt` file, whatever it was trained with.

    Raises `NotFound`, `LoadFailed` and `IntegrityError` for what is not there, no checkpoint of training, or damaged;
    `MissingExtra` without what its network takes.
    """
    found, config, env = read_run(find_checkpoint(path))
    if config.algo in ("ppo", "a2c", "impala"):
        return NativeGreedy(found, config, env)
    require("torch", "torch")
    from headrace.rl.algorithms.replayed import ReplayedGreedy

    return ReplayedGreedy(found, config, env)


class NativeGreedy:
    """The native network of a checkpoint of PPO or A2C."""

    def __init__(self, found: Checkpoint, config: TrainConfig, env: EnvSpec) -> None:
        self.env_spec, self.config = env, config
        self.spec: MlpSpec = mlp_for(env, hidden=tuple(config.hidden), activation=config.activation)
        self.parameters: Floats = found.arrays["learner.parameters"]
        count, mean, m2 = (found.arrays[f"collector.obs_{name}"] for name in ("count", "mean", "m2"))
        moments = Moments(float(count[0]) if config.normalise_obs else 0.0, mean, m2)
        self.normaliser = Normaliser.of(moments, limit=10.0 if config.normalise_obs else float("inf"))
        self._policy = Policy(self.spec)

    def reset(self, n: int) -> None:
        pass

    def act(self, obs: Floats, begins: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[Any]:
        if obs.dtype != np.float32 or obs.ndim != 2 or obs.shape[1] != self.spec.obs_size:
            raise InvalidInput(
                f"observations: expected float32[n, {self.spec.obs_size}], got {obs.dtype}{list(obs.shape)}"
            )
        actions = self._policy.act(self.parameters, np.ascontiguousarray(self.normaliser(obs)), greedy=True).actions
        if isinstance(self.env_spec.action, Box):
            actions = np.clip(actions, self.env_spec.action.low.ravel(), self.env_spec.action.high.ravel())
        return actions.reshape(self.env_spec.actions_shape(len(obs)))
