"""Training runs: a config in, a trained policy out, with what happened on the way told to whoever watches.

    update (collect, learn) -> (evaluate) -> (checkpoint) -> tell

A run has a folder: `config.json`, `events.out.tfevents.*` for TensorBoard, `last.ckpt`, `best.ckpt` and, at its end,
`curve.png`. Going on from `last.ckpt` gives the very bits the run would have had without the break. What a learner
remembers of old steps lies beside it, in `last-UPDATES.replay`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.core.context import Context
from headrace.core.telemetry import Registry
from headrace.errors import Cancelled, ConfigError, DeadlineExceeded, InvalidInput, Unavailable
from headrace.rl.algorithms.algorithm import Remembers
from headrace.rl.algorithms.make import make_algorithm
from headrace.rl.algorithms.places import Place
from headrace.rl.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from headrace.rl.config import TrainConfig
from headrace.rl.curve import EPISODES, EVALUATION, History, draw_curves, read_history
from headrace.rl.log import EventLog
from headrace.rl.metrics import TrainMetrics
from headrace.rl.spec_facts import facts_of
from headrace.store.durable import replace_file

__all__ = ["CURVE", "Report", "Result", "Trainer", "train"]

CURVE = "curve.png"
"""What the run reached, drawn at its end."""

LAST = "last.ckpt"
"""What a run goes on from."""

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
    losses: Mapping[str, float]
    eval_return: float | None

    def numbers(self) -> dict[str, float]:
        """By the names they have in the log."""
        losses = {f"loss/{name}": float(value) for name, value in self.losses.items()}
        rollout = {f"rollout/{name}": float(getattr(self, name)) for name in _ROLLOUT}
        times = {f"time/{name}": float(getattr(self, name)) for name in _TIMES}
        evaluated = {} if self.eval_return is None else {"eval/mean_return": self.eval_return}
        return {**rollout, **losses, **times, **evaluated}


_ROLLOUT = ("mean_return", "mean_length", "episodes", "lag")
_TIMES = ("steps_s", "episodes_s", "collect_s", "learn_s")


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

    def __init__(
        self,
        config: TrainConfig,
        folder: Path | None = None,
        env: Place | None = None,
        metrics: TrainMetrics | None = None,
    ) -> None:
        self.config, self.folder = config, folder
        self._metrics = metrics or TrainMetrics(Registry(enabled=False))
        self.algorithm = make_algorithm(config, env)
        self.counts = _Counts()

    @property
    def target(self) -> float:
        """The evaluation that ends the run; NaN: none does."""
        wanted = self.config.target_return
        wanted = self.algorithm.env_spec.reward_threshold if wanted is None else wanted
        return math.nan if wanted is None else wanted

    def update(self, ctx: Context | None = None) -> Report:
        """Collect, learn, and evaluate where it is time. Raises the error of `ctx` when that ends, `StageFailed` for an
        environment that gives no number, `InvalidInput` for a gradient that overflows."""
        counts, config = self.counts, self.config
        began_s = time.perf_counter()
        update = self.algorithm.update(counts.steps / config.total_steps, ctx)
        self._metrics.update(update)
        stats = update.stats
        counts.updates += 1
        counts.steps += update.steps
        counts.episodes += stats.episodes
        counts.recent = [*counts.recent, *zip(stats.returns.tolist(), stats.lengths.tolist(), strict=True)][-RECENT:]
        evaluated = self._evaluate() if counts.updates % config.eval_every == 0 or self.done else None
        counts.seconds += time.perf_counter() - began_s
        took_s = update.collect_s + update.learn_s
        means = np.mean(counts.recent, axis=0) if counts.recent else (math.nan, math.nan)
        return Report(
            updates=counts.updates,
            steps=counts.steps,
            episodes=counts.episodes,
            mean_return=float(means[0]),
            mean_length=float(means[1]),
            steps_s=update.steps / took_s,
            episodes_s=stats.episodes / took_s,
            collect_s=update.collect_s,
            learn_s=update.learn_s,
            lag=update.lag,
            losses=update.losses,
            eval_return=evaluated,
        )

    @property
    def done(self) -> bool:
        return self.counts.steps >= self.config.total_steps or self.solved

    @property
    def solved(self) -> bool:
        return self.counts.best_return >= self.target

    def save(self, name: str) -> None:
        """Write the checkpoint `name` in the folder, if there is one. The memory of `last.ckpt` is a file that it
        names: a break between the two leaves the ones before."""
        if self.folder is None:
            return
        with self._metrics.stage("checkpoint"):
            self._save(self.folder, name)

    def _save(self, folder: Path, name: str) -> None:
        memory = None
        if name == LAST and isinstance(self.algorithm, Remembers):
            memory = f"last-{self.counts.updates}.replay"
            self.algorithm.save_memory(folder / memory)
        save_checkpoint(folder / name, self._checkpoint(memory))
        if memory is not None:
            for old in folder.glob("last-*.replay"):
                if old.name != memory:
                    old.unlink(missing_ok=True)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint. Raises `LoadFailed`, `IntegrityError` as `load_checkpoint` does, `ConfigError`
        naming the setting in which it differs."""
        found = load_checkpoint(path)
        if found.facts.get("kind") != "training":
            raise ConfigError(f"{path}: expected a checkpoint of training, it is of {found.facts.get('kind')!r}")
        ours, theirs = _plain(self.config), found.facts["config"]
        free = {"total_steps", "target_return", "threads", "workers", "eval_every", "eval_episodes", "checkpoint_s"}
        for key in sorted(set(ours) - free):
            if ours[key] != theirs.get(key):
                raise ConfigError(f"{path}: was made with {key} = {theirs.get(key)!r}, not {ours[key]!r}")
        if isinstance(self.algorithm, Remembers):
            memory = found.facts.get("memory")
            if memory is None:
                raise ConfigError(f"{path}: goes without the memory that going on takes; {LAST} has it")
            self.algorithm.load_memory(path.parent / memory)
        self.algorithm.load(found)
        counts = dict(found.facts["counts"])
        counts["recent"] = [tuple(pair) for pair in counts["recent"]]
        counts["best_return"] = -math.inf if counts["best_return"] is None else counts["best_return"]
        self.counts = _Counts(**counts)

    def _evaluate(self) -> float:
        with self._metrics.stage("evaluate"):
            found = self.algorithm.evaluate(self.config.eval_episodes, self.config.seed)
        self._metrics.evaluated(found.mean_return)
        if found.mean_return > self.counts.best_return:
            self.counts.best_return = found.mean_return
            self.save("best.ckpt")
        return found.mean_return

    def _checkpoint(self, memory: str | None) -> Checkpoint:
        state = self.algorithm.state()
        counts = {name: getattr(self.counts, name) for name in _Counts.__slots__}
        counts["best_return"] = None if math.isinf(self.counts.best_return) else self.counts.best_return
        facts = {"kind": "training", "config": _plain(self.config), "counts": counts, "memory": memory}
        facts["env"] = facts_of(self.algorithm.env_spec)
        return Checkpoint(state.arrays, {**state.facts, **facts})

    def close(self) -> None:
        """End what runs beside: processes, and memory that is shared."""
        self.algorithm.close()


def train(
    config: TrainConfig,
    folder: Path | None = None,
    *,
    resume: bool = False,
    watch: Callable[[Report], object] | None = None,
    metrics: TrainMetrics | None = None,
    ctx: Context | None = None,
) -> Result:
    """Train until the target is reached, the steps are done, or `ctx` ends, which loses nothing: what there is by then
    is in the last checkpoint, and `resume` goes on from it.

    Args:
        folder: Of the run; made if it is not there. None: nothing is written.
        resume: Go on from `last.ckpt` in the folder.
        watch: Told after every update.
        metrics: Where it is counted (`headrace.rl.monitor` shows them over HTTP); default: nowhere.

    Raises `ConfigError` for a folder that holds another run (or, with `resume`, none), and what `Trainer` does.
    """
    trainer = Trainer(config, folder, metrics=metrics)
    try:
        if folder is not None:
            _claim(folder, resume, config)
        history = History()
        if resume and folder is not None:
            trainer.load(folder / LAST)
            history = read_history(folder, until=trainer.counts.steps)
        _go(trainer, history, watch, ctx)
    finally:
        trainer.close()
    counts = trainer.counts
    best = counts.best_return if math.isfinite(counts.best_return) else math.nan
    return Result(counts.steps, counts.episodes, counts.updates, counts.seconds, best, trainer.solved)


def _go(trainer: Trainer, history: History, watch: Callable[[Report], object] | None, ctx: Context | None) -> None:
    log = EventLog(trainer.folder) if trainer.folder is not None else None
    saved_s = time.monotonic()
    try:
        while not trainer.done:
            try:
                report = trainer.update(ctx)
            except (Cancelled, DeadlineExceeded):
                break
            if log is not None:
                log.write(report.steps, report.numbers())
            history.add(EPISODES, report.steps, report.mean_return)
            if report.eval_return is not None:
                history.add(EVALUATION, report.steps, report.eval_return)
            if watch is not None:
                watch(report)
            if time.monotonic() - saved_s >= trainer.config.checkpoint_s:
                trainer.save(LAST)
                saved_s = time.monotonic()
            if ctx is not None and ctx.error is not None:
                break
        trainer.save(LAST)
        if trainer.folder is not None:
            _draw(history, trainer.folder / CURVE, trainer.config.env)
    finally:
        if log is not None:
            log.close()


def _draw(history: History, path: Path, title: str) -> None:
    try:
        replace_file(path, draw_curves(history.curves(), title=title))
    except InvalidInput:  # no episode has ended yet
        return
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}") from error


def _plain(config: TrainConfig) -> dict[str, Any]:
    """As JSON has it."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def _claim(folder: Path, resume: bool, config: TrainConfig) -> None:
    last = folder / LAST
    if resume and not last.is_file():
        raise ConfigError(f"{folder}: expected a run to resume, there is no last.ckpt")
    if not resume and last.exists():
        raise ConfigError(f"{folder}: holds a run already; resume it or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
