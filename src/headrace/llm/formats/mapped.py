"""A file in memory without reading it: a path in, a read-only view of its bytes out, there until nobody holds it."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed

__all__ = ["MappedFile"]


class MappedFile:
    """A regular file, mapped. Raises `LoadFailed` for anything else (missing, empty, a pipe, a device, no permission).

    Attributes:
        path: As given.
        size: Bytes of the file when it was opened.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """Map `path`, or the open `descriptor` known by that name (which stays the caller's to close)."""
        self.path = str(path)
        self._map: mmap.mmap | None = _map(path, descriptor) if descriptor is not None else _open_and_map(path)
        self.size = len(self._map)

    @property
    def view(self) -> memoryview:
        """The bytes; slices of it copy nothing and keep the file mapped."""
        return memoryview(self._open())

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """uint8[size], read-only; views of it keep the file mapped."""
        return np.frombuffer(self._open(), np.uint8)

    def close(self) -> None:
        """Let go of the file: its pages leave this process at once, its addresses when the last view is gone."""
        if self._map is not None:
            with contextlib.suppress(OSError, ValueError):
                self._map.madvise(mmap.MADV_DONTNEED)
            self._map = None

    def _open(self) -> mmap.mmap:
        if self._map is None:
            raise LoadFailed(f"{self.path}: is closed")
        return self._map


def _open_and_map(path: Path) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LoadFailed(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return _map(path, descriptor)
    finally:
        os.close(descriptor)


def _map(path: Path, descriptor: int) -> mmap.mmap:
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise LoadFailed(f"{path}: expected a regular file")
        if facts.st_size == 0:
            raise LoadFailed(f"{path}: is empty")
        return mmap.mmap(descriptor, facts.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path}: cannot be mapped into memory: {error}") from error
