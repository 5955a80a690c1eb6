"""Training runs: a config in, a trained policy out, with what happened on the way told to whoever watches.

    collect -> learn -> (evaluate) -> (checkpoint) -> tell

A run has a folder: `config.json`, `events.out.tfevents.*` for TensorBoard, `last.ckpt` and `best.ckpt`. Going on from
`last.ckpt` gives the very bits the run would have had without the break.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.core.context import Context
from headrace.errors import Cancelled, ConfigError, DeadlineExceeded
from headrace.rl.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.envs import CompiledEnv, make_env
from headrace.rl.evaluate import evaluate
from headrace.rl.learners.a2c import A2cConfig, NativeA2c
from headrace.rl.learners.native import Losses
from headrace.rl.learners.ppo import NativePpo
from headrace.rl.log import EventLog
from headrace.rl.policy import Weights, initial, mlp_for
from headrace.rl.rollout import Collector

__all__ = ["Report", "Result", "Trainer", "train"]

RECENT = 100
"""Episodes that the return told on the way is a mean over."""


@dataclass(frozen=True, slots=True)
class Report:
    """After an update. Returns and lengths are means over the last 100 episodes, NaN before one has ended; rates are
    of this update; `lag` is how many updates the policy that collected was behind."""

    updates: int
    steps: int
    episodes: int
    mean_return: float
    mean_length: float
    steps_s: float
    episodes_s: float
    collect_s: float
    learn_s: float
    lag: int
    losses: Losses
    eval_return: float | None

    def numbers(self) -> dict[str, float]:
        """By the names they have in the log."""
        losses = {f"loss/{name}": float(getattr(self.losses, name)) for name in _LOSSES}
        rollout = {f"rollout/{name}": float(getattr(self, name)) for name in _ROLLOUT}
        times = {f"time/{name}": float(getattr(self, name)) for name in _TIMES}
        evaluated = {} if self.eval_return is None else {"eval/mean_return": self.eval_return}
        return {**rollout, **losses, **times, **evaluated}


_ROLLOUT = ("mean_return", "mean_length", "episodes", "lag")
_TIMES = ("steps_s", "episodes_s", "collect_s", "learn_s")
_LOSSES = ("policy", "value", "entropy", "approx_kl", "clip_fraction", "grad_norm", "explained_variance")


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended. `best_return`: the best evaluation, NaN without one. `solved`: whether it reached the target."""

    steps: int
    episodes: int
    updates: int
    seconds: float
    best_return: float
    solved: bool


@dataclass(slots=True)
class _Counts:
    steps: int = 0
    episodes: int = 0
    updates: int = 0
    seconds: float = 0.0
    best_return: float = -math.inf
    recent: list[tuple[float, int]] = field(default_factory=list)


class Trainer:
    """A run that can be gone through update by update. `folder` None keeps everything in memory."""

    def __init__(self, config: TrainConfig, folder: Path | None = None, env: CompiledEnv | None = None) -> None:
        self.config, self.folder = config, folder
        self.env = env or make_env(config.env)
        self.spec = mlp_for(self.env.spec, hidden=tuple(config.hidden), activation=config.activation)
        learner = config.learner
        self.collector = Collector(
            self.env,
            self.spec,
            n_envs=config.n_envs,
            n_steps=config.n_steps,
            seed=config.seed,
            threads=config.threads or None,
            normalise_obs=config.normalise_obs,
            normalise_rewards=config.normalise_reward,
            gamma=learner.gamma,
            bad_values=config.bad_values,
        )
        kind: Any = NativeA2c if isinstance(learner, A2cConfig) else NativePpo
        self.learner = kind(
            self.spec, learner, initial(self.spec, config.seed), seed=config.seed, threads=config.threads
        )
        self.weights = Weights(self.learner.parameters)
        self.counts = _Counts()

    @property
    def target(self) -> float:
        """The evaluation that ends the run; NaN: none does."""
        wanted = self.config.target_return
        wanted = self.env.spec.reward_threshold if wanted is None else wanted
        return math.nan if wanted is None else wanted

    def update(self, ctx: Context | None = None) -> Report:
        """Collect, learn, and evaluate where it is time. Raises the error of `ctx` when that ends, `StageFailed` for an
        environment that gives no number, `InvalidInput` for a gradient that overflows."""
        counts, config = self.counts, self.config
        began_s = time.perf_counter()
        trajectory = self.collector.collect(self.weights, ctx=ctx)
        collected_s = time.perf_counter()
        losses = self.learner.update(trajectory, counts.steps / config.total_steps)
        version = self.weights.publish(self.learner.parameters)
        ended_s = time.perf_counter()
        stats = trajectory.stats
        counts.updates += 1
        counts.steps += config.n_envs * config.n_steps
        counts.episodes += stats.episodes
        counts.recent = [*counts.recent, *zip(stats.returns.tolist(), stats.lengths.tolist(), strict=True)][-RECENT:]
        evaluated = self._evaluate() if counts.updates % config.eval_every == 0 or self.done else None
        counts.seconds += time.perf_counter() - began_s
        took_s = ended_s - began_s
        means = np.mean(counts.recent, axis=0) if counts.recent else (math.nan, math.nan)
        return Report(
            updates=counts.updates,
            steps=counts.steps,
            episodes=counts.episodes,
            mean_return=float(means[0]),
            mean_length=float(means[1]),
            steps_s=config.n_envs * config.n_steps / took_s,
            episodes_s=stats.episodes / took_s,
            collect_s=collected_s - began_s,
            learn_s=ended_s - collected_s,
            lag=version - 1 - trajectory.version,
            losses=losses,
            eval_return=evaluated,
        )

    @property
    def done(self) -> bool:
        return self.counts.steps >= self.config.total_steps or self.solved

    @property
    def solved(self) -> bool:
        return self.counts.best_return >= self.target

    def save(self, name: str) -> None:
        """Write the checkpoint `name` in the folder, if there is one."""
        if self.folder is not None:
            save_checkpoint(self.folder / name, self._checkpoint())

    def load(self, path: Path) -> None:
        """Go on from a checkpoint. Raises `LoadFailed`, `IntegrityError` as `load_checkpoint` does, `ConfigError`
        naming the setting in which it differs."""
        found = load_checkpoint(path)
        if found.facts.get("kind") != "training":
            raise ConfigError(f"{path}: expected a checkpoint of training, it is of {found.facts.get('kind')!r}")
        ours, theirs = _plain(self.config), found.facts["config"]
        free = {"total_steps", "target_return", "threads", "eval_every", "eval_episodes", "checkpoint_s"}
        for key in sorted(set(ours) - free):
            if ours[key] != theirs.get(key):
                raise ConfigError(f"{path}: was made with {key} = {theirs.get(key)!r}, not {ours[key]!r}")
        part = {kind: {} for kind in ("collector", "learner")}  # type: dict[str, dict[str, Any]]
        for name, array in found.arrays.items():
            kind, _, rest = name.partition(".")
            part[kind][rest] = array
        self.learner.load({**part["learner"], **found.facts["learner"]})
        self.collector.load_state_dict(part["collector"])
        counts = dict(found.facts["counts"])
        counts["recent"] = [tuple(pair) for pair in counts["recent"]]
        counts["best_return"] = -math.inf if counts["best_return"] is None else counts["best_return"]
        self.counts = _Counts(**counts)
        self.weights = Weights(self.learner.parameters)

    def _evaluate(self) -> float:
        found = evaluate(
            self.env,
            self.spec,
            self.learner.parameters,
            moments=self.collector.moments[0] if self.config.normalise_obs else None,
            episodes=self.config.eval_episodes,
            seed=self.config.seed,
            threads=self.config.threads or None,
        )
        if found.mean_return > self.counts.best_return:
            self.counts.best_return = found.mean_return
            self.save("best.ckpt")
        return found.mean_return

    def _checkpoint(self) -> Checkpoint:
        arrays = {f"collector.{name}": array for name, array in self.collector.state_dict().items()}
        state = self.learner.state()
        arrays |= {f"learner.{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
        counts = {name: getattr(self.counts, name) for name in _Counts.__slots__}
        counts["best_return"] = None if math.isinf(self.counts.best_return) else self.counts.best_return
        return Checkpoint(
            arrays,
            {
                "kind": "training",
                "config": _plain(self.config),
                "learner": {name: value for name, value in state.items() if isinstance(value, int)},
                "counts": counts,
            },
        )


def train(
    config: TrainConfig,
    folder: Path | None = None,
    *,
    resume: bool = False,
    watch: Callable[[Report], object] | None = None,
    ctx: Context | None = None,
) -> Result:
    """Train until the target is reached, the steps are done, or `ctx` ends, which loses nothing: what there is by then
    is in the last checkpoint, and `resume` goes on from it.

    Args:
        folder: Of the run; made if it is not there. None: nothing is written.
        resume: Go on from `last.ckpt` in the folder.
        watch: Told after every update.

    Raises `ConfigError` for a folder that holds another run (or, with `resume`, none), and what `Trainer` does.
    """
    trainer = Trainer(config, folder)
    if folder is not None:
        _claim(folder, resume, config)
    if resume and folder is not None:
        trainer.load(folder / "last.ckpt")
    log = EventLog(folder) if folder is not None else None
    saved_s = time.monotonic()
    try:
        while not trainer.done:
            try:
                report = trainer.update(ctx)
            except (Cancelled, DeadlineExceeded):
                break
            if log is not None:
                log.write(report.steps, report.numbers())
            if watch is not None:
                watch(report)
            if time.monotonic() - saved_s >= config.checkpoint_s:
                trainer.save("last.ckpt")
                saved_s = time.monotonic()
            if ctx is not None and ctx.error is not None:
                break
        trainer.save("last.ckpt")
    finally:
        if log is not None:
            log.close()
    counts = trainer.counts
    best = counts.best_return if math.isfinite(counts.best_return) else math.nan
    return Result(counts.steps, counts.episodes, counts.updates, counts.seconds, best, trainer.solved)


def _plain(config: TrainConfig) -> dict[str, Any]:
    """As JSON has it."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def _claim(folder: Path, resume: bool, config: TrainConfig) -> None:
    last = folder / "last.ckpt"
    if resume and not last.is_file():
        raise ConfigError(f"{folder}: expected a run to resume, there is no last.ckpt")
    if not resume and last.exists():
        raise ConfigError(f"{folder}: holds a run already; resume it or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
