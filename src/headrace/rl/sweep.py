"""Searching for settings: a config and what to vary in, trials as ordinary runs and the best settings out.

    sweep(changes, [parse_range("ppo.learning_rate=log:1e-4..1e-2")], folder, trials=20, env="headrace/CartPole-v1")

Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) proposes settings; the study lies in the folder, so
that a sweep goes on where it was left. A trial that fails is noted and is nobody else's harm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import msgspec

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import Cancelled, ConfigError, HeadraceError, IntegrityError, Unavailable
from headrace.rl.algorithms.places import find_place
from headrace.rl.config import TrainConfig, load_config
from headrace.rl.ranges import Range
from headrace.rl.train import Report, train
from headrace.store.durable import replace_file

__all__ = ["Trial", "sweep", "to_toml"]

FREE = ("threads", "workers", "checkpoint_s")
"""Settings that may change while a study goes on: results are comparable with others."""


@dataclass(frozen=True)
class Trial:
    """One run. `value`: its best evaluation, NaN without one; `error`: why it failed, or ""."""

    number: int
    settings: dict[str, str]
    value: float
    state: Literal["complete", "pruned", "failed"]
    error: str


def sweep(
    changes: Sequence[str],
    ranges: Sequence[Range],
    folder: Path,
    *,
    trials: int,
    jobs: int = 1,
    config: Path | None = None,
    seed: int = 0,
    prune: bool = False,
    told: Callable[[Trial, int], object] | None = None,
    ctx: Context | None = None,
    **given: Any,
) -> list[Trial]:
    """Run trials until there are `trials` in the study, or `ctx` ends; all trials, the best first. One that `ctx`
    breaks off does not count.

    Args:
        changes, config, given: Settings of every trial, as `load_config` takes them.
        folder: Trial n is a run in its `trial-NNN`; `best.toml` has the settings of the best one.
        jobs: Trials at a time, each on a thread of its own.
        prune: End trials whose evaluations lag behind the median of the others'.
        told: Told of each trial that has ended, and of how many have; by one thread at a time.

    Raises `ConfigError` for settings that no trial could have or that are not those of the study in the folder,
    `NotFound` for an environment that is not there, `IntegrityError` for a study that is damaged, `Unavailable` for a
    folder that cannot be written, `MissingExtra` without optuna.
    """

    def settings_of(changed: dict[str, str]) -> TrainConfig:
        return load_config(config, [*changes, *(f"{key}={text}" for key, text in changed.items())], **given)

    _check(ranges, settings_of)
    with _kept(folder):
        study = _study(folder, settings_of({}), ranges, seed, prune)
    lock, running = Lock(), 0

    def work() -> None:
        nonlocal running
        while True:
            with lock, _kept(folder):
                if (ctx is not None and ctx.error is not None) or len(_ended(study)) + running >= trials:
                    return
                proposed = study.ask()
                settings = {one.key: one.propose(proposed) for one in ranges}
                running += 1
            trial = _attempt(proposed, settings, settings_of, folder, prune, ctx)
            with lock, _kept(folder):
                running -= 1
                _note(study, proposed, trial)
                if told is not None and trial is not None:
                    told(trial, len(_ended(study)))

    if jobs == 1:
        work()
    else:
        with ThreadPoolExecutor(jobs) as pool:
            for ended in [pool.submit(work) for _ in range(jobs)]:
                ended.result()
    found = sorted(_ended(study), key=_rank)
    if found and found[0].state == "complete":
        with _kept(folder):
            replace_file(folder / "best.toml", to_toml(settings_of(found[0].settings)).encode())
    return found


def _rank(trial: Trial) -> tuple[bool, float, int]:
    complete = trial.state == "complete"
    return not complete, -trial.value if complete else 0.0, trial.number


def _check(ranges: Sequence[Range], settings_of: Callable[[dict[str, str]], TrainConfig]) -> None:
    """Refuse at once what would fail in every trial."""
    if not ranges:
        raise ConfigError("sweep: expected something to vary, such as --vary ppo.learning_rate=log:1e-4..1e-2")
    keys = [one.key for one in ranges]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError(f"--vary {twice[0]}: is given twice")
    find_place(settings_of({}).env)
    for one in ranges:
        refusals = []
        for sample in one.samples():
            try:
                settings_of({one.key: sample})
            except ConfigError as error:
                refusals.append(error)
        if len(refusals) == len(one.samples()):
            raise ConfigError(f"--vary {one.key}: no trial could have it: {refusals[0]}") from refusals[0]


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """What goes wrong with the files of a study is told as such."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{folder}: cannot be written: {error.strerror}") from error


def _study(folder: Path, config: TrainConfig, ranges: Sequence[Range], seed: int, prune: bool) -> Any:
    """The study in the folder, a new one if there is none."""
    optuna = require("optuna", "rl")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "study.journal"
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if prune else optuna.pruners.NopPruner()
        study = optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", pruner=pruner, load_if_exists=True
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: no study, or one that is damaged: {error}") from error
    # Other random numbers where it goes on, or the first proposals would come again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), n_startup_trials=5)
    ours: dict[str, Any] = json.loads(msgspec.json.encode(config))
    theirs = study.user_attrs.get("config", ours)
    for key in sorted(set(ours) - set(FREE)):
        if ours[key] != theirs.get(key):
            raise ConfigError(f"{folder}: holds a study with {key} = {theirs.get(key)!r}, not {ours[key]!r}")
    for one in ranges:
        for trial in study.trials:
            one.check_known(trial.distributions)
    study.set_user_attr("config", ours)
    return study


def _attempt(
    proposed: Any,
    settings: dict[str, str],
    settings_of: Callable[[dict[str, str]], TrainConfig],
    folder: Path,
    prune: bool,
    ctx: Context | None,
) -> Trial | None:
    """Run a trial; None where `ctx` broke it off."""
    number = proposed.number
    try:
        own = settings_of(settings)
        value, ended = _run(own, folder / f"trial-{number:03}", proposed if prune else None, ctx)
    except HeadraceError as error:
        return Trial(number, settings, math.nan, "failed", str(error))
    except Exception as error:  # of an environment, of memory that ran out: the other trials may do better
        return Trial(number, settings, math.nan, "failed", f"{type(error).__name__}: {error}")
    if ended == "broken off":
        return None
    if ended == "pruned":
        return Trial(number, settings, value, "pruned", "")
    if math.isnan(value):
        return Trial(number, settings, value, "failed", "there was no evaluation: give it more steps")
    return Trial(number, settings, value, "complete", "")


def _run(
    config: TrainConfig, folder: Path, judged: Any, ctx: Context | None
) -> tuple[float, Literal["complete", "pruned", "broken off"]]:
    """The best evaluation of a run, and how it ended."""
    own = Context()
    undo = ctx.on_cancel(lambda error: own.cancel(Cancelled(str(error)))) if ctx is not None else None
    hopeless = False

    def watch(report: Report) -> None:
        nonlocal hopeless
        if judged is not None and report.eval_return is not None:
            judged.report(report.eval_return, report.steps)
            if judged.should_prune():
                hopeless = True
                own.cancel()

    try:
        result = train(config, folder, watch=watch, ctx=own)
    finally:
        if undo is not None:
            undo()
    if hopeless:
        return result.best_return, "pruned"
    done = result.solved or result.steps >= config.total_steps
    return result.best_return, "complete" if done else "broken off"


def _note(study: Any, proposed: Any, trial: Trial | None) -> None:
    """Keep how a trial ended."""
    states = require("optuna", "rl").trial.TrialState
    if trial is None:
        study.tell(proposed, state=states.FAIL)
        return
    proposed.set_user_attr("settings", trial.settings)
    proposed.set_user_attr("error", trial.error)
    proposed.set_user_attr("value", None if math.isnan(trial.value) else trial.value)
    if trial.state == "complete":
        study.tell(proposed, trial.value)
    else:
        study.tell(proposed, state=states.PRUNED if trial.state == "pruned" else states.FAIL)


def _ended(study: Any) -> list[Trial]:
    """The trials that count: not those that run, nor those that were broken off."""
    names: dict[str, Literal["complete", "pruned", "failed"]] = {"COMPLETE": "complete", "PRUNED": "pruned"}
    found = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.is_finished() and "settings" in trial.user_attrs:
            kept = trial.user_attrs
            value = math.nan if kept.get("value") is None else float(kept["value"])
            state = names.get(trial.state.name, "failed")
            found.append(Trial(trial.number, kept["settings"], value, state, kept.get("error", "")))
    return found


def to_toml(config: TrainConfig) -> str:
    """A file that `load_config` reads as this config."""
    plain = msgspec.to_builtins(config)
    tables = {key: value for key, value in plain.items() if isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if value is not None and key not in tables]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
