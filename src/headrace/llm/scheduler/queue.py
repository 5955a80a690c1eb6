"""Who is admitted next: waiting sequences in, the one whose turn it is out.

The highest priority first; among equals the tenant that has had least, so that one with a thousand requests does not
keep out one with a single one; within a tenant the order of arrival.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["FairQueue", "Waiting"]

MANY = 1024
"""Tenants or priorities beyond which those that have had least, or have nobody waiting, are forgotten."""


class Waiting(Protocol):
    """What the queue reads of a sequence. `arrival` is unique."""

    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def arrival(self) -> int: ...


W = TypeVar("W", bound=Waiting)


class _Level(Generic[W]):
    """One priority. A tenant's clock advances by the tokens computed for it; one that comes back starts at the present,
    which is the clock of the tenant served last. Source: start-time fair queueing, Goyal et al. 1996."""

    def __init__(self) -> None:
        self.lines: dict[str, list[W]] = {}
        self._clocks: dict[str, int] = {}
        self._present = 0

    def turn(self) -> str:
        return min(self.lines, key=lambda tenant: (self._clock(tenant), self.lines[tenant][0].arrival))

    def serve(self, tenant: str) -> None:
        self._present = self._clock(tenant)
        if len(self._clocks) > MANY:
            self._clocks = dict(sorted(self._clocks.items(), key=lambda entry: -entry[1])[: MANY // 2])

    def charge(self, tenant: str, tokens: int) -> None:
        self._clocks[tenant] = self._clock(tenant) + tokens

    def _clock(self, tenant: str) -> int:
        return max(self._clocks.get(tenant, 0), self._present)


class FairQueue(Generic[W]):
    """Not thread-safe. Iterates in no particular order."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level[W]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[W]:
        return (waiting for level in self._levels.values() for line in level.lines.values() for waiting in line)

    def add(self, waiting: W) -> None:
        if waiting.priority not in self._levels:
            if len(self._levels) > MANY:
                self._levels = {priority: level for priority, level in self._levels.items() if level.lines}
            self._levels[waiting.priority] = _Level()
        line = self._levels[waiting.priority].lines.setdefault(waiting.tenant, [])
        insort(line, waiting, key=lambda other: other.arrival)
        self._length += 1

    def remove(self, waiting: W) -> None:
        lines = self._levels[waiting.priority].lines
        lines[waiting.tenant].remove(waiting)
        if not lines[waiting.tenant]:
            del lines[waiting.tenant]
        self._length -= 1

    def first(self) -> W | None:
        """Whose turn it is, or None when nobody waits."""
        level = self._top()
        return level.lines[level.turn()][0] if level else None

    def take(self) -> W:
        """Remove and return the first; there must be one."""
        level = self._top()
        assert level is not None
        tenant = level.turn()
        level.serve(tenant)
        first = level.lines[tenant][0]
        self.remove(first)
        return first

    def charge(self, waiting: W, tokens: int) -> None:
        """So many tokens were computed for one that has been in the queue."""
        level = self._levels.get(waiting.priority)
        if level is not None:
            level.charge(waiting.tenant, tokens)

    def _top(self) -> _Level[W] | None:
        if not self._length:
            return None
        return self._levels[max(priority for priority, level in self._levels.items() if level.lines)]
