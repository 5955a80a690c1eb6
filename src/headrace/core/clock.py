"""Time as an argument: code that waits or ages things takes a `Clock`; tests hand in a `ManualClock`.

A clock is any callable that returns seconds on a line that never runs backwards; `time.monotonic` is the usual one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.errors import ConfigError

__all__ = ["Clock", "ManualClock"]

Clock: TypeAlias = Callable[[], float]


class ManualClock:
    """A clock that stands still until it is told to advance."""

    __slots__ = ("_now_s",)

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let `seconds` (>= 0) pass."""
        if seconds < 0:
            raise ConfigError(f"a clock never runs backwards: expected seconds >= 0, got {seconds}")
        self._now_s += seconds
