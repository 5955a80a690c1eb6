"""What an environment takes and gives: spaces of actions and observations, and the facts a trainer needs of it.

Observations flow as float32 rows, flattened; actions as int32 (`Discrete`, `MultiDiscrete`) or float32 (`Box`). The
spaces here hold no random state and need no Gymnasium; `to_gymnasium` and `from_gymnasium` cross over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.core.extras import require
from headrace.errors import InvalidInput

__all__ = ["ActionSpace", "Box", "Discrete", "EnvSpec", "MultiDiscrete", "from_gymnasium", "to_gymnasium"]


class Box:
    """Arrays of `shape` between `low` and `high` (both inclusive, infinities allowed), float32.

    `low` and `high` are numbers, or arrays of `shape`; without `shape` theirs is taken.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, low: ArrayLike, high: ArrayLike, shape: Sequence[int] | None = None) -> None:
        lowest, highest = np.asarray(low, np.float32), np.asarray(high, np.float32)
        self.shape = tuple(int(n) for n in (np.broadcast(lowest, highest).shape if shape is None else shape))
        if any(n < 1 for n in self.shape):
            raise InvalidInput(f"Box: every length of its shape must be at least 1, got {self.shape}")
        try:
            self.low = np.broadcast_to(lowest, self.shape)
            self.high = np.broadcast_to(highest, self.shape)
        except ValueError as error:
            raise InvalidInput(
                f"Box: bounds of shapes {lowest.shape} and {highest.shape} do not fit the shape {self.shape}"
            ) from error
        if not (self.low <= self.high).all():
            raise InvalidInput("Box: low must not be above high anywhere, and neither may be NaN")

    @property
    def size(self) -> int:
        """Numbers in one element."""
        return math.prod(self.shape)

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.shape == other.shape
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.low.tobytes(), self.high.tobytes()))

    def __repr__(self) -> str:
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        same = bool((low == low[0]).all() and (high == high[0]).all())
        bounds = f"{low[0]:g}, {high[0]:g}" if same else f"{low.tolist()}, {high.tolist()}"
        return f"Box({bounds}, shape={self.shape})"


@dataclass(frozen=True)
class Discrete:
    """One whole number in 0 … n - 1."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidInput(f"Discrete: n must be at least 1, got {self.n}")

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def size(self) -> int:
        return 1

    @property
    def dtype(self) -> np.dtype[np.int32]:
        return np.dtype(np.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several whole numbers, the j-th in 0 … nvec[j] - 1."""

    nvec: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nvec", tuple(int(n) for n in self.nvec))
        if not self.nvec or min(self.nvec) < 1:
            raise InvalidInput(f"MultiDiscrete: needs numbers of at least 1, got {self.nvec}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    @property
    def size(self) -> int:
        return len(self.nvec)

    @property
    def dtype(self) -> np.dtype[np.int32]:
        return np.dtype(np.int32)


ActionSpace = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class EnvSpec:
    """The facts of an environment.

    `max_steps`: an episode that has not ended by then is truncated (0: never). `reward_threshold`: the mean return at
    which the task counts as solved, if there is one. `players`: whose turn it is changes with every step when above 1.
    """

    id: str
    observation: Box
    action: ActionSpace
    max_steps: int = 0
    reward_threshold: float | None = None
    players: int = 1

    @property
    def obs_size(self) -> int:
        """Floats in one observation, flattened."""
        return self.observation.size

    @property
    def action_size(self) -> int:
        """Numbers in one action."""
        return self.action.size

    def actions_shape(self, n: int) -> tuple[int, ...]:
        """Shape of the actions of n environments: (n,) for `Discrete`, else (n, action_size)."""
        return (n,) if isinstance(self.action, Discrete) else (n, self.action.size)


def to_gymnasium(space: ActionSpace) -> Any:
    """The Gymnasium space of the same elements. Raises `MissingExtra` without gymnasium."""
    spaces = require("gymnasium.spaces", "rl")
    if isinstance(space, Box):
        return spaces.Box(space.low, space.high, space.shape, np.float32)
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    return spaces.MultiDiscrete(list(space.nvec))


def from_gymnasium(space: Any) -> ActionSpace:
    """The space of a Gymnasium `Box`, `Discrete` or `MultiDiscrete` (flat, counted from 0).

    Raises `InvalidInput` for other spaces, and for discrete ones that do not start at 0.
    """
    kind = type(space).__name__
    start: NDArray[Any] = np.asarray(getattr(space, "start", 0))
    if kind in ("Discrete", "MultiDiscrete") and start.any():
        raise InvalidInput(f"{space}: actions must be counted from 0")
    if kind == "Box":
        return Box(space.low, space.high, space.shape)
    if kind == "Discrete":
        return Discrete(int(space.n))
    if kind == "MultiDiscrete" and np.ndim(space.nvec) == 1:
        return MultiDiscrete(tuple(space.nvec))
    raise InvalidInput(f"{space}: only Box, Discrete and one-dimensional MultiDiscrete spaces are supported")
