"""The native thread pool, seen from Python: to look at it and to test it. Kernels use it without Python.

A range flows in and is run in chunks by the pool's threads and the caller; it returns when all chunks are done.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace import _native
from headrace.core.probe import cpu
from headrace.errors import InvalidInput

__all__ = ["Workers"]


class Workers(_native.ThreadPool):
    """`threads` threads, the caller counted (None: as many as are worth running); workers are pinned to `cpus` in turn.

    `parallel_for(begin, end, grain, fn)` calls `fn(from, to)` and passes the first exception on; `trace(chunks)` tells
    the cpu that ran each of so many chunks. `InvalidInput` for a bad number of threads or a cpu that cannot be used.
    """

    def __init__(self, threads: int | None = None, cpus: Sequence[int] = ()) -> None:
        count = cpu().threads if threads is None else threads
        if count < 1:
            raise InvalidInput(f"workers: expected at least 1 thread, got {count}")
        super().__init__(count, list(cpus))
