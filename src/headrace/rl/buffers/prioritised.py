"""Replay memory drawn from by priority: TD errors in, rows that promise most to learn from out, with their weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.rl.buffers.fields import Batch, Field, Integrity
from headrace.rl.buffers.replay import ReplayBuffer

__all__ = ["PrioritisedReplay"]


class PrioritisedReplay(ReplayBuffer):
    """Replay memory that draws a row with probability proportional to (priority + epsilon)^alpha.

    Priorities belong to this object, not to the shared memory: producers push as into any `ReplayBuffer` and need not
    know. A new row gets the highest priority so far. Source: Schaul et al. 2016, proportional variant.
    """

    def __init__(
        self,
        fields: Iterable[Field],
        capacity: int,
        *,
        name: str | None = None,
        seed: int = 0,
        alpha: float = 0.6,
        epsilon: float = 1e-6,
        _first: int = 0,
    ) -> None:
        super().__init__(fields, capacity, name=name, seed=seed, _first=_first)
        self._prioritise(alpha, epsilon)

    @classmethod
    def attach(cls, name: str, *, seed: int = 0, alpha: float = 0.6, epsilon: float = 1e-6) -> Self:
        """Use the buffer another process made, with priorities of our own."""
        self = super().attach(name, seed=seed)
        self._prioritise(alpha, epsilon)
        return self

    def _prioritise(self, alpha: float, epsilon: float) -> None:
        self.alpha, self.epsilon = alpha, epsilon
        self._priorities = _native.ReplayPriorities(self, alpha, epsilon)

    def sample(self, n: int | None = None, out: Batch | None = None, *, beta: float = 0.4) -> Batch:
        """Draw `n` rows, one from each of n equal parts of the sum of all priorities.

        `weights` are (N P(i))^-beta, divided by their greatest value in the batch.
        """
        batch = self._batch(n, out)
        self._priorities.sample(batch.rows, batch.slots, batch.sequences, batch.weights, self._seed, self._draws, beta)
        self._draws += 1
        return batch

    def update_priorities(self, batch: Batch, priorities: NDArray[np.float32]) -> int:
        """Set the priorities (0 or more, finite: the size of TD errors; float32[n]) of the rows of a batch.

        Rows that were overwritten since they were drawn are left alone; returns how many were not. Raises
        `InvalidInput`, before anything has changed, when a priority is negative or not finite.
        """
        return self._priorities.update(batch.slots, batch.sequences, priorities)

    def check_integrity(self) -> Integrity:
        """Look at every slot and every sum of priorities."""
        self._priorities.check_integrity()
        return super().check_integrity()

    def _settings(self) -> dict[str, Any]:
        own = {"alpha": self.alpha, "epsilon": self.epsilon, "_newest": self._priorities.newest}
        return {**super()._settings(), **own}

    def _resume(self, settings: Mapping[str, Any], leaves: NDArray[np.float64]) -> None:
        super()._resume(settings, leaves)
        self._priorities.restore(leaves, float(settings["_newest"]))

    def _leaves(self) -> NDArray[np.float64]:
        leaves = np.zeros(self.capacity)
        self._priorities.leaves(leaves)
        return leaves
