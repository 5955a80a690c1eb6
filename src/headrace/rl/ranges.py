"""What a search may vary: `KEY=RANGE` as a command line has it in, proposals as `--set` takes them out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import ConfigError

__all__ = ["Range", "parse_range"]


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

    def samples(self) -> tuple[str, ...]:
        """All choices, or both ends."""
        if self.kind == "choice":
            return self.choices
        return tuple(str(int(end)) if self.kind == "int" else repr(end) for end in (self.low, self.high))

    def check_known(self, distributions: Mapping[str, Any]) -> None:
        """Raises `ConfigError` where a trial has tried this setting in a way that cannot be gone on with (Optuna's
        `distributions` of that trial): ends may move, kinds and choices may not."""
        known = distributions.get(self.key)
        if known is None:
            return
        if hasattr(known, "choices"):
            kind, choices = "choice", tuple(known.choices)
        else:
            kind, choices = ("int" if isinstance(known.low, int) else "log" if known.log else "number"), ()
        if (kind, choices) != (self.kind, self.choices):
            told = "|".join(choices) or f"a {kind} range"
            raise ConfigError(f"--vary {self.key}: the study has tried {told}; vary that, or choose another folder")


def parse_range(text: str) -> Range:
    """`KEY=LOW..HIGH`, `KEY=log:LOW..HIGH`, `KEY=int:LOW..HIGH` or `KEY=A|B|C`. Raises `ConfigError` for anything
    else."""
    key, equals, spec = text.partition("=")
    wrong = ConfigError(f"--vary {text}: expected KEY=LOW..HIGH, KEY=log:LOW..HIGH, KEY=int:LOW..HIGH or KEY=A|B")
    if not equals or not key.strip() or not spec.strip():
        raise wrong
    if "|" in spec:
        choices = tuple(part.strip() for part in spec.split("|"))
        if not all(choices) or len(set(choices)) < len(choices):
            raise ConfigError(f"--vary {text}: expected choices that differ and are not empty")
        return Range(key.strip(), "choice", choices=choices)
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
