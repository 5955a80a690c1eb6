"""What the settings of learners share: how they change while training goes on, and checks that name what is wrong."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from headrace.errors import ConfigError

__all__ = ["Schedule", "check_count", "check_flag", "check_number", "check_schedule", "scheduled"]

Schedule: TypeAlias = Literal["constant", "linear", "cosine"]
"""How a setting goes from its value to 0 (or stays) between progress 0 and 1."""


def scheduled(value: float, schedule: Schedule, progress: float) -> float:
    """`value` at `progress`, the part of the training that is done (0 … 1; held to that range)."""
    progress = min(max(progress, 0.0), 1.0)
    if schedule == "linear":
        return value * (1.0 - progress)
    if schedule == "cosine":
        return value * 0.5 * (1.0 + math.cos(math.pi * progress))
    return value


def check_number(
    owner: str, name: str, value: float | None, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """Raise `ConfigError` unless `low <= value <= high` (`low < value` with `above`) and finite. None passes."""
    if value is None:
        return
    right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if right and (low < value if above else low <= value) and value <= high:
        return
    limits = f"{'above' if above else 'of at least'} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
    raise ConfigError(f"{owner}.{name}: expected a number {limits}, got {value!r}")


def check_count(owner: str, name: str, value: int) -> None:
    """Raise `ConfigError` unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{owner}.{name}: expected a whole number of at least 1, got {value!r}")


def check_flag(owner: str, name: str, value: bool) -> None:
    """Raise `ConfigError` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{owner}.{name}: expected true or false, got {value!r}")


def check_schedule(owner: str, name: str, value: str) -> None:
    """Raise `ConfigError` unless `value` names a `Schedule`."""
    if value not in ("constant", "linear", "cosine"):
        raise ConfigError(f"{owner}.{name}: expected 'constant', 'linear' or 'cosine', got {value!r}")
