"""Replay memory in shared memory, drawn from with equal chances: rows in by `push`, batches out by `sample`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.core import shm
from headrace.errors import InvalidInput
from headrace.rl.buffers import file
from headrace.rl.buffers.fields import Batch, Field, Integrity, ReplayStats, fields_of, note_of

__all__ = ["ReplayBuffer"]


class ReplayBuffer(_native.ReplayMemory):
    """Replay memory with uniform sampling.

    `push(**rows)` takes one array of n rows for each field (or one single row each) and returns how many were stored:
    all, unless live processes that do not get on hold every slot. `clear()` forgets all rows. `len(buffer)` counts the
    rows, also those being written. The same `seed` and rows give the same draws.

    Raises `InvalidInput` (fields, capacity, arrays that do not fit), `Conflict` (the name is taken), `Overloaded` (no
    shared memory, or 1024 live processes push already) and `Unavailable` (nothing to sample from).
    """

    fields: tuple[Field, ...]
    _segment: shm.SharedSegment
    _seed: int
    _draws: int

    def __init__(
        self, fields: Iterable[Field], capacity: int, *, name: str | None = None, seed: int = 0, _first: int = 0
    ) -> None:
        chosen = tuple(fields)
        names = [field.name for field in chosen]
        if len(set(names)) != len(names):
            raise InvalidInput(f"fields: expected each name once, got {names}")
        if capacity < 1:
            raise InvalidInput(f"capacity: expected at least 1 row, got {capacity}")
        note = note_of(chosen)
        sizes = [field.size_bytes for field in chosen]
        segment = shm.create(name, self.bytes_for(sizes, capacity, len(note.encode())))
        super().__init__(segment, sizes, capacity, note, _first)
        weakref.finalize(self, segment.unlink)
        self._set_up(segment, chosen, seed)

    @classmethod
    def attach(cls, name: str, *, seed: int = 0) -> Self:
        """Use the buffer another process made. Raises `NotFound`, or `IntegrityError` when it is no such buffer."""
        self = cls.__new__(cls)
        segment = shm.attach(name)
        _native.ReplayMemory.__init__(self, segment)
        self._set_up(segment, fields_of(self.note), seed)
        return self

    def _set_up(self, segment: shm.SharedSegment, fields: tuple[Field, ...], seed: int) -> None:
        self._segment, self.fields, self._seed, self._draws = segment, fields, int(seed) & (2**64 - 1), 0
        self._describe(
            [
                (field.name, dtype.kind, dtype.itemsize, dtype.name, list(field.shape))
                for field in fields
                for dtype in [np.dtype(field.dtype)]
            ]
        )

    @property
    def name(self) -> str:
        return self._segment.name

    def unlink(self) -> None:
        """Remove the name now (owner only): nobody can attach any more, and those who have go on undisturbed."""
        self._segment.unlink()

    def new_batch(self, n: int) -> Batch:
        """Arrays for `n` rows, to be handed to `sample` again and again."""
        rows = {field.name: field.zeros(n) for field in self.fields}
        return Batch(rows, np.zeros(n, np.int64), np.zeros(n, np.int64), np.ones(n, np.float32))

    def sample(self, n: int | None = None, out: Batch | None = None) -> Batch:
        """Draw `n` rows (as many as `out` holds), each with equal chance, with replacement.

        The rows of `out` may lie anywhere (a slice, pinned memory), as long as each one is contiguous.
        """
        batch = self._batch(n, out)
        self._sample(batch.rows, batch.slots, batch.sequences, self._seed, self._draws)
        self._draws += 1
        return batch

    def gather(self, slots: NDArray[np.int64], out: Batch | None = None) -> Batch:
        """The rows now in `slots`; `sequences` is -1 where there is none, and that row is then worth nothing."""
        batch = self._batch(len(slots), out)
        batch.slots[:] = slots
        self._gather(batch.rows, batch.slots, batch.sequences)
        return batch

    def _batch(self, n: int | None, out: Batch | None) -> Batch:
        if out is None:
            if n is None or n < 0:
                raise InvalidInput(f"sample: expected a number of rows or a batch to fill, got {n}")
            return self.new_batch(n)
        if n is not None and n != len(out):
            raise InvalidInput(f"sample: expected a batch of {n} rows, got one of {len(out)}")
        return out

    @property
    def stats(self) -> ReplayStats:
        return ReplayStats(*self._stats())

    @property
    def window(self) -> tuple[int, int]:
        """The sequences now in the buffer: from the oldest to one past the newest. A row's slot is its sequence modulo
        `capacity`."""
        first, end = self._window()
        return first, end

    def check_integrity(self) -> Integrity:
        """Look at every slot. Raises `IntegrityError` when one says what cannot be."""
        return Integrity(*self._check())

    def save(self, path: str | Path) -> int:
        """Write all rows, oldest first, and what the next draws depend on; returns how many rows.

        The file appears whole or not at all. Rows that producers overwrite meanwhile are left out.
        """
        return file.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, name: str | None = None) -> Self:
        """A new buffer with what `save` wrote; its next draws are those the saved one would have made.

        Raises `NotFound`, or `IntegrityError` for a damaged or foreign file.
        """
        return file.load(cls, Path(path), name)

    def _settings(self) -> dict[str, Any]:
        """What `load` gives to the constructor, and (with a leading underscore) to `_resume`."""
        return {"capacity": self.capacity, "seed": self._seed, "_draws": self._draws}

    def _resume(self, settings: Mapping[str, Any], leaves: NDArray[np.float64]) -> None:
        self._draws = int(settings["_draws"])

    def _leaves(self) -> NDArray[np.float64] | None:
        """For each slot what a checkpoint has to keep beside its row."""
        return None

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        """Buffers travel to other processes by name."""
        return type(self).attach, (self.name,)
