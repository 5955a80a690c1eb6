"""What parent and workers share: rows of observations, actions, rewards and flags in one segment of shared memory.

The parent makes a board and workers attach to it by name. A row belongs to whoever the last command or answer left it
to: to the worker from a command that names its environment until the answer, else to the parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core import shm
from headrace.rl.workers.layout import Rows

__all__ = ["Board", "BoardSpec"]

_COLUMNS = (
    ("rewards", np.float64),
    ("returns", np.float64),  # of the running episode, or of the one that ended with the last step
    ("lengths", np.int64),
    ("terminated", np.bool_),
    ("truncated", np.bool_),
    ("alive", np.bool_),  # whether it will act in the next step; False for an agent that has left
    ("over", np.bool_),  # the episode of the whole environment ended; in the row of its first agent
    ("orders", np.bool_),  # True: reset instead of stepping; in the row of its first agent
)


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """All that the layout follows from: `envs` environments of `agents` rows each, spaces of one row.

    `final`: whether there are rows for the last observations of episodes (autoreset in the same step).
    """

    observation_space: Any
    action_space: Any
    envs: int
    agents: int
    workers: int
    final: bool

    @property
    def rows(self) -> int:
        return self.envs * self.agents


class Board:
    """Views of the segment: `obs`, `final`, `actions` (`Rows`), an array per column, and `progress`, int64[workers, 8]:
    how many calls of environments a worker has begun, and in which one it is (or -1)."""

    def __init__(self, spec: BoardSpec, segment: shm.SharedSegment) -> None:
        self.spec, self._segment = spec, segment
        n, data, at = spec.rows, segment.array(), 0
        parts: list[Rows] = []
        for space, rows in _rows(spec):
            parts.append(Rows(space, rows, data, at))
            at += Rows.nbytes(space, rows)
        self.obs, self.actions, self.final = parts
        columns: dict[str, Any] = {}
        for name, dtype in _COLUMNS:
            size = n * np.dtype(dtype).itemsize
            columns[name] = data[at : at + size].view(dtype)
            at += -(-size // 64) * 64
        self.rewards, self.returns, self.lengths = columns["rewards"], columns["returns"], columns["lengths"]
        self.terminated, self.truncated, self.alive = columns["terminated"], columns["truncated"], columns["alive"]
        self.over, self.orders = (columns[name][:: spec.agents] for name in ("over", "orders"))
        self.progress = data[at : at + 64 * spec.workers].view(np.int64).reshape(spec.workers, 8)

    @classmethod
    def create(cls, spec: BoardSpec) -> Board:
        """Raises `Overloaded` when there is not so much shared memory."""
        size = sum(Rows.nbytes(space, rows) for space, rows in _rows(spec)) + 64 * spec.workers
        size += sum(-(-spec.rows * np.dtype(dtype).itemsize // 64) * 64 for _, dtype in _COLUMNS)
        board = cls(spec, shm.create(None, size))
        board.alive[:] = True
        board.progress[:, 1] = -1
        return board

    @classmethod
    def attach(cls, spec: BoardSpec, name: str) -> Board:
        return cls(spec, shm.attach(name))

    @property
    def name(self) -> str:
        return self._segment.name

    def unlink(self) -> None:
        self._segment.unlink()


def _rows(spec: BoardSpec) -> tuple[tuple[Any, int], ...]:
    return (
        (spec.observation_space, spec.rows),
        (spec.action_space, spec.rows),
        (spec.observation_space, spec.rows if spec.final else 0),
    )
