"""Searching for settings: a config and what to vary in, trials as ordinary runs and the best settings out.

    sweep(changes, [parse_range("ppo.learning_rate=log:1e-4..1e-2")], folder, trials=20, env="headrace/CartPole-v1")

Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) proposes settings; the study lies in the folder, so
that a sweep goes on where it was left. A trial that fails is noted and is nobody else's harm.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import Cancelled, ConfigError, HeadraceError
from headrace.rl.config import TrainConfig, load_config
from headrace.rl.train import Report, train
from headrace.store.durable import replace_file

__all__ = ["Range", "Trial", "parse_range", "sweep", "to_toml"]


@dataclass(frozen=True)
class Range:
    """What a setting may be: one of `choices`, or from `low` to `high`, evenly or by orders of magnitude."""

    key: str
    kind: Literal["choice", "number", "log", "int"]
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    def propose(self, trial: Any) -> str:
        """As `--set` takes it."""
        if self.kind == "choice":
            return str(trial.suggest_categorical(self.key, list(self.choices)))
        if self.kind == "int":
            return str(trial.suggest_int(self.key, int(self.low), int(self.high)))
        return repr(float(trial.suggest_float(self.key, self.low, self.high, log=self.kind == "log")))


@dataclass(frozen=True)
class Trial:
    """One run. `value`: its best evaluation, NaN without one; `error`: why it failed, or ""."""

    number: int
    settings: dict[str, str]
    value: float
    state: Literal["complete", "pruned", "failed"]
    error: str


def parse_range(text: str) -> Range:
    """`KEY=LOW..HIGH`, `KEY=log:LOW..HIGH`, `KEY=int:LOW..HIGH` or `KEY=A|B|C`. Raises `ConfigError` for anything
    else."""
    key, equals, spec = text.partition("=")
    wrong = ConfigError(f"--vary {text}: expected KEY=LOW..HIGH, KEY=log:LOW..HIGH, KEY=int:LOW..HIGH or KEY=A|B")
    if not equals or not key.strip() or not spec.strip():
        raise wrong
    if "|" in spec:
        return Range(key.strip(), "choice", choices=tuple(part.strip() for part in spec.split("|")))
    kind, colon, bounds = spec.rpartition(":")
    low, dots, high = bounds.partition("..")
    if not dots or kind not in ("", "log", "int") or (colon and not kind):
        raise wrong
    try:
        least, most = float(low), float(high)
    except ValueError:
        raise wrong from None
    if not (math.isfinite(least) and math.isfinite(most) and least < most) or (kind == "log" and least <= 0):
        raise ConfigError(f"--vary {text}: expected finite bounds, the lower one first, and above 0 for log")
    if kind == "int" and not (least.is_integer() and most.is_integer()):
        raise ConfigError(f"--vary {text}: expected whole numbers")
    return Range(key.strip(), "log" if kind == "log" else "int" if kind == "int" else "number", least, most)


def sweep(
    changes: Sequence[str],
    ranges: Sequence[Range],
    folder: Path,
    *,
    trials: int,
    config: Path | None = None,
    seed: int = 0,
    prune: bool = False,
    told: Callable[[Trial], object] | None = None,
    ctx: Context | None = None,
    **given: Any,
) -> list[Trial]:
    """Run trials until there are `trials` in the study, or `ctx` ends; all trials, the best first.

    Args:
        changes, config, given: Settings of every trial, as `load_config` takes them.
        folder: Trial n is a run in its `trial-NNN`; `best.toml` has the settings of the best one.
        prune: End trials whose evaluations lag behind the median of the others'.
        told: Told of each trial that has ended.

    Raises `ConfigError` for settings that no trial could have, `MissingExtra` without optuna.
    """
    optuna = require("optuna", "rl")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not ranges:
        raise ConfigError("sweep: expected something to vary, such as --vary ppo.learning_rate=log:1e-4..1e-2")
    load_config(config, changes, **given)
    study = _study(optuna, folder, seed, prune)
    while sum(trial.state.is_finished() for trial in study.trials) < trials and not (ctx is not None and ctx.error):
        proposed = study.ask()
        settings = {one.key: one.propose(proposed) for one in ranges}
        state, value, error = optuna.trial.TrialState.COMPLETE, math.nan, ""
        try:
            own = load_config(config, [*changes, *(f"{key}={text}" for key, text in settings.items())], **given)
            value, pruned = _run(own, folder / f"trial-{proposed.number:03}", proposed if prune else None, ctx)
            if ctx is not None:
                ctx.check()
            state = optuna.trial.TrialState.PRUNED if pruned else state
        except HeadraceError as failure:
            state, error = optuna.trial.TrialState.FAIL, str(failure)
        if state is optuna.trial.TrialState.COMPLETE and math.isnan(value):
            state, error = optuna.trial.TrialState.FAIL, "there was no evaluation: give it more steps"
        proposed.set_user_attr("error", error)
        proposed.set_user_attr("settings", settings)
        study.tell(proposed, None if state is not optuna.trial.TrialState.COMPLETE else value, state)
        if told is not None:
            told(_trial(study.trials[proposed.number]))
    ended = [_trial(trial) for trial in study.trials if trial.state.is_finished()]
    ended.sort(key=lambda trial: (trial.state != "complete", -trial.value if trial.state == "complete" else 0.0))
    if ended and ended[0].state == "complete":
        best = load_config(config, [*changes, *(f"{k}={v}" for k, v in ended[0].settings.items())], **given)
        replace_file(folder / "best.toml", to_toml(best).encode())
    return ended


def _study(optuna: Any, folder: Path, seed: int, prune: bool) -> Any:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        journal = require("optuna.storages.journal", "rl")
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "study.journal")))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if prune else optuna.pruners.NopPruner()
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=5)
    return optuna.create_study(
        storage=storage, study_name="sweep", direction="maximize", sampler=sampler, pruner=pruner, load_if_exists=True
    )


def _run(config: TrainConfig, folder: Path, judged: Any, ctx: Context | None) -> tuple[float, bool]:
    """The best evaluation of a run, and whether it was ended early for want of hope."""
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
        return train(config, folder, watch=watch, ctx=own).best_return, hopeless
    finally:
        if undo is not None:
            undo()


def _trial(trial: Any) -> Trial:
    names: dict[str, Literal["complete", "pruned", "failed"]] = {"COMPLETE": "complete", "PRUNED": "pruned"}
    return Trial(
        trial.number,
        trial.user_attrs.get("settings", {}),
        math.nan if trial.value is None else float(trial.value),
        names.get(trial.state.name, "failed"),
        trial.user_attrs.get("error", "it was interrupted"),
    )


def to_toml(config: TrainConfig) -> str:
    """A file that `load_config` reads as this config."""
    plain = msgspec.to_builtins(config)
    tables = {key: value for key, value in plain.items() if isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if value is not None and key not in tables]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    text = "\n".join(lines) + "\n"
    tomllib.loads(text)
    return text


def _toml(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)
