"""What to train and how: a TOML file and `key=value` changes in, one checked struct out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from headrace.errors import ConfigError
from headrace.rl.learners.a2c import A2cConfig
from headrace.rl.learners.dqn_settings import DqnConfig
from headrace.rl.learners.impala import ImpalaConfig
from headrace.rl.learners.ppo import PpoConfig
from headrace.rl.learners.sac_settings import SacConfig

__all__ = ["TrainConfig", "load_config"]

Count = Annotated[int, Meta(ge=1)]
Learner = TypeVar("Learner")

_LEARNERS: dict[str, type[Any]] = {
    "ppo": PpoConfig,
    "a2c": A2cConfig,
    "impala": ImpalaConfig,
    "dqn": DqnConfig,
    "sac": SacConfig,
}
_DEFAULTS: dict[str, dict[str, Any]] = {"impala": {"n_envs": 64, "n_steps": 32, "normalise_obs": False}} | {
    algo: {"n_envs": 8, "n_steps": 128, "activation": "relu", "normalise_obs": False} for algo in ("dqn", "sac")
}
"""Settings that are other ones by default: where actors run by themselves, and where a learner replays its steps."""


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training run. Defaults learn CartPole in seconds.

    Attributes:
        env: An id (`headrace/CartPole-v1`) or `package.module:Class` of a definition; or, to run in processes, an id of
            Gymnasium's (`LunarLander-v3`) or `package.module:factory` of such an environment.
        algo: How to learn.
        total_steps: Steps of all environments together, after which it ends.
        n_envs, n_steps: Environments, and steps of each between two updates.
        hidden, activation: Layers of the actor and of the critic.
        seed: Of environments, actions, parameters and shuffles: the same seed, the same run.
        threads: 0: one a usable CPU.
        normalise_obs: Observations to mean 0 and standard deviation 1, by what was seen so far.
        normalise_reward: Rewards by the standard deviation of the discounted return.
        bad_values: What to do when an environment gives NaN or infinity.
        workers: Processes for an environment that is not compiled; 0: one a usable CPU.
        target_return: End when the mean over `eval_episodes` greedy episodes reaches this; None: the environment's own
            threshold; a NaN: never.
        eval_every: Updates between evaluations.
        eval_episodes: Episodes of an evaluation, on seeds that training does not use.
        checkpoint_s: Seconds between checkpoints.
        ppo, a2c, impala, dqn, sac: Settings of the learner; of `algo` only.
    """

    env: str
    algo: Literal["ppo", "a2c", "impala", "dqn", "sac"] = "ppo"
    total_steps: Count = 1_000_000
    n_envs: Count = 256
    n_steps: Count = 64
    hidden: tuple[Count, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    normalise_obs: bool = True
    normalise_reward: bool = False
    bad_values: Literal["stop", "drop", "clip"] = "stop"
    target_return: float | None = None
    workers: Annotated[int, Meta(ge=0, le=120)] = 0
    eval_every: Count = 10
    eval_episodes: Count = 100
    checkpoint_s: Annotated[float, Meta(gt=0)] = 30.0
    ppo: dict[str, Any] = {}
    a2c: dict[str, Any] = {}
    impala: dict[str, Any] = {}
    dqn: dict[str, Any] = {}
    sac: dict[str, Any] = {}

    @property
    def learner(self) -> Any:
        """Settings of the learner that `algo` names, `PpoConfig` say. Raises `ConfigError` naming the key."""
        return _learner(_LEARNERS[self.algo], self.algo, getattr(self, self.algo))


def load_config(file: Path | None, changes: Sequence[str] = (), **given: Any) -> TrainConfig:
    """The config of a TOML file, with `given` (None: not given) and then `changes` ("ppo.clip=0.1") over it.

    Raises `ConfigError` naming the file or key at fault.
    """
    table: dict[str, Any] = {}
    if file is not None:
        try:
            table = tomllib.loads(file.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from error
    table |= {key: value for key, value in given.items() if value is not None}
    for change in changes:
        _change(table, change)
    if "env" not in table:
        raise ConfigError("env: expected the environment to train in, got none")
    algo = table.get("algo")
    table = {**(_DEFAULTS.get(algo, {}) if isinstance(algo, str) else {}), **table}
    try:
        config = msgspec.convert(table, TrainConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file or 'settings'}: {error}") from error
    for other in sorted(set(_LEARNERS) - {config.algo}):
        if getattr(config, other):
            raise ConfigError(f"{other}: has settings, but algo is {config.algo!r}")
    config.learner  # noqa: B018  raises for what cannot be
    return config


def _change(table: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    *path, name = key.strip().split(".")
    if not equals or not name or not all(path):
        raise ConfigError(f"--set {change}: expected key=value, such as ppo.clip=0.1")
    for part in path:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {change}: {part} is no table")
        table = inner
    try:
        table[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:  # a word without quotes
        table[name] = text


def _learner(kind: type[Learner], name: str, table: Mapping[str, Any]) -> Learner:
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"{name}: has no {', '.join(unknown)}; it has {', '.join(known)}")
    return kind(**table)
