"""How a pool of workers behaves: limits and policies, checked once when they are given."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from headrace.errors import InvalidInput
from headrace.rl.workers.faults import BadValues
from headrace.rl.workers.restarts import RestartPolicy

__all__ = ["PoolSettings"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """
    Args:
        step_timeout_s: How long one call of an environment may take (None: for ever); its process is then replaced.
        start_timeout_s: How long a process may take to start and to make its environments.
        rss_limit_bytes: A process that grows beyond it is replaced.
        bad_values: What a NaN or an infinity in a reward or an observation does. "stop" raises; "drop" ends the episode
            there, truncated, with reward 0; "clip" takes NaN as 0 and an infinity as +-`bad_limit`. All are counted.
        on_fault: "restart" truncates the episode, makes the environment (or its process) anew and goes on; "raise"
            raises what happened.
        restarts: How often and how fast, for each process; and how often each environment may raise.
        infos: Whether the environments' infos are wanted; they are pickled, unlike everything else.
        close_timeout_s: How long environments may take to close before they are killed.
    """

    step_timeout_s: float | None = 60.0
    start_timeout_s: float = 120.0
    rss_limit_bytes: int | None = None
    bad_values: BadValues = "stop"
    bad_limit: float = 10.0
    on_fault: Literal["restart", "raise"] = "restart"
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    infos: bool = True
    close_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("step_timeout_s", "start_timeout_s", "rss_limit_bytes", "bad_limit"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name}: expected more than 0, got {value}")
        if self.close_timeout_s < 0:
            raise InvalidInput(f"close_timeout_s: expected at least 0, got {self.close_timeout_s}")
        for name, allowed in (("bad_values", get_args(BadValues)), ("on_fault", ("restart", "raise"))):
            if getattr(self, name) not in allowed:
                raise InvalidInput(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    @classmethod
    def of(cls, options: dict[str, Any]) -> PoolSettings:
        """From keyword arguments. Raises `InvalidInput` for a name that is none."""
        known = [one.name for one in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InvalidInput(f"workers: unknown settings {', '.join(unknown)}; there are {', '.join(known)}")
        return cls(**options)
