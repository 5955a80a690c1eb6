"""Leased buffers: a size flows in, aligned memory flows out, is used as NumPy or DLPack without a copy, and is reused.

    with pool.lease(4096) as lease:
        frame = lease.array((32, 32), np.float32)

A lease is given back exactly once. Its memory is used again only when no array made from it lives any more, so keeping
one is safe and merely keeps its memory; a debug pool calls that an error at the release, and fills free memory with
0xDB, so that a write through a raw pointer after the return or beside the buffer is found as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace import _native
from headrace.errors import InvalidInput

__all__ = ["Lease", "PoolStats", "TensorPool"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Bytes count whole size classes. `leases` and `reused` count from the start, the others describe now.

    `peak_bytes` is the most that was ever leased at once; `huge_blocks` asked the system for huge pages.
    """

    leased_bytes: int
    cached_bytes: int
    peak_bytes: int
    leases: int
    reused: int
    live: int
    huge_blocks: int


class Lease:
    """Borrowed memory of `nbytes` bytes, uninitialised, made by `TensorPool.lease`; for one thread at a time."""

    __slots__ = ("_loan",)

    def __init__(self, loan: _native.Lease) -> None:
        self._loan = loan

    @property
    def nbytes(self) -> int:
        return self._loan.nbytes

    @property
    def released(self) -> bool:
        return self._loan.released

    @property
    def views(self) -> int:
        """Arrays made from this lease that live now."""
        return self._loan.views

    @property
    def pointer(self) -> int:
        """The address, for native code; it must not be used after the release. `LeaseError` after it."""
        return self._loan.pointer

    def array(self, shape: int | Sequence[int], dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """A C-contiguous array over the start of the memory, no copy. Overlaps with every other array of this lease.

        Raises `InvalidInput` when it does not fit and `LeaseError` after the release.
        """
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if kind.hasobject or any(size < 0 for size in sizes):
            raise InvalidInput(f"lease: expected sizes >= 0 and a dtype without objects, got {sizes} of {kind}")
        needed = math.prod(sizes) * kind.itemsize
        if needed > self.nbytes:
            raise InvalidInput(f"lease: {sizes} of {kind} takes {needed} bytes, the lease has {self.nbytes}")
        return np.ndarray(sizes, kind, buffer=self._loan._bytes())

    def __dlpack__(self, **options: Any) -> Any:
        """All bytes as a one-dimensional uint8 tensor; `torch.from_dlpack(lease)` shares the memory."""
        return self.array(self.nbytes).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def release(self) -> None:
        """Give the memory back. `LeaseError` the second time; on a debug pool also while arrays of it live (the lease
        then stays valid) and when memory beside the buffer was written.
        """
        self._loan.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        if kind is None:
            self.release()
        else:
            self._loan._drop()  # the traceback may hold arrays; their error would hide the real one


class TensorPool:
    """A pool of at most `limit_bytes` (None: no limit), leased and cached memory together. Thread-safe.

    Memory comes in size classes that waste at most a quarter; from 2 MiB on it is mapped in whole huge pages.
    """

    def __init__(self, limit_bytes: int | None = None, *, debug: bool = False) -> None:
        if limit_bytes is not None and limit_bytes <= 0:
            raise InvalidInput(f"pool: expected limit_bytes > 0 or None, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.debug = debug
        self._pool = _native.BufferPool(limit_bytes or 0, debug)

    def lease(self, nbytes: int, *, alignment: int = 64, timeout_s: float | None = 0.0) -> Lease:
        """Borrow `nbytes` (at least 1) bytes aligned to `alignment` (a power of two, 64 to 4096).

        While the limit is in the way, waits up to `timeout_s` (None: for ever) for memory to come back, then raises
        `Overloaded`. `InvalidInput` for bad arguments and for more than the pool may ever hold; a debug pool raises
        `LeaseError` when the memory it was about to hand out had been written to while it was free.
        """
        if nbytes < 1 or alignment < 1:
            raise InvalidInput(f"pool: expected at least 1 byte and a positive alignment, got {nbytes} and {alignment}")
        return Lease(self._pool.lease(nbytes, alignment, timeout_s))

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike = np.uint8, *, timeout_s: float | None = 0.0
    ) -> NDArray[Any]:
        """An uninitialised array whose memory comes back by itself when the last array over it is gone."""
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        lease = self.lease(max(1, math.prod(sizes) * kind.itemsize), timeout_s=timeout_s)
        array = lease.array(sizes, kind)
        lease._loan._drop()
        return array

    def trim(self) -> None:
        """Give what is cached back to the system."""
        self._pool.trim()

    def stats(self) -> PoolStats:
        return PoolStats(**self._pool.stats())
