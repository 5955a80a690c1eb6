"""When to replace what failed: times of past failures and a policy in, a delay or "give up" out. A pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import InvalidInput

__all__ = ["RestartPolicy", "delay_s"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `limit` failures within `window_s` seconds are mended: the first at once, the next after `backoff_s`,
    then twice as long each time, `backoff_max_s` at most."""

    limit: int = 10
    window_s: float = 60.0
    backoff_s: float = 0.1
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        if self.limit < 0 or not self.window_s > 0 or not 0 <= self.backoff_s <= self.backoff_max_s:
            raise InvalidInput(
                "restarts: expected limit >= 0, window_s > 0 and 0 <= backoff_s <= backoff_max_s, "
                f"got {self.limit}, {self.window_s}, {self.backoff_s} and {self.backoff_max_s}"
            )


def delay_s(policy: RestartPolicy, failures_s: Sequence[float], now_s: float) -> float | None:
    """Seconds to wait before the restart, given the times of all failures, this one included; None: give up."""
    recent = sum(now_s - at < policy.window_s for at in failures_s)
    if recent > policy.limit:
        return None
    if recent <= 1:
        return 0.0
    return min(policy.backoff_max_s, policy.backoff_s * 2.0 ** min(recent - 2, 60))
