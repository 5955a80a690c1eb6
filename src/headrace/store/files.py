"""The bytes of regular files: in flow paths and streams, out come hashes and copies, a chunk at a time."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO, Protocol

from headrace.errors import IntegrityError
from headrace.store.manifest import FileEntry
from headrace.store.progress import Step

__all__ = ["Readable", "copy_stream", "hash_file", "open_regular"]

_CHUNK = 1 << 20


class Readable(Protocol):
    """What bytes are read from, at most `size_bytes` at once; b"" at the end."""

    def read(self, size_bytes: int, /) -> bytes: ...


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a link, pipe, socket or device raises `IntegrityError` instead of blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IntegrityError(f"{path}: expected a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def hash_file(path: Path, step: Step) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a regular file."""
    digest, size_bytes = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size_bytes += len(chunk)
            step.advance(len(chunk))
    return size_bytes, digest.hexdigest()


def copy_stream(source: Readable, target: Path, path: str, limit_bytes: int, step: Step) -> FileEntry:
    """Copy a stream to the new file `target / path`, hashing as it goes; raises `IntegrityError` past `limit_bytes`."""
    digest, size_bytes = hashlib.sha256(), 0
    destination = target / path
    destination.parent.mkdir(parents=True, exist_ok=True)
    with destination.open("xb") as file:
        while chunk := source.read(_CHUNK):
            size_bytes += len(chunk)
            if size_bytes > limit_bytes:
                raise IntegrityError(f"{path}: holds more than the {limit_bytes} bytes announced")
            digest.update(chunk)
            file.write(chunk)
            step.advance(len(chunk))
    return FileEntry(path, size_bytes, digest.hexdigest())
