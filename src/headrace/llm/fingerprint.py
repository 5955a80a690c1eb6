"""What a model file holds, in 64 digits: paths in, the SHA-256 of their bytes out, hashed once and remembered.

A file that is the same by device, inode, size and time of change is not read again. One changed moments ago is not
remembered: a second change within the clock's tick would go unseen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from headrace.errors import LoadFailed
from headrace.store.durable import scratch_name

__all__ = ["fingerprint"]

_SETTLED_NS = 2_000_000_000
_CHUNK = 1 << 22


def fingerprint(paths: Iterable[str | Path], memory: Path) -> str:
    """SHA-256 over the files' own SHA-256, in order. Raises `LoadFailed` for a file that cannot be read.

    Args:
        paths: The files.
        memory: Folder where digests are remembered, made if need be; one that cannot be written only costs time.
    """
    whole = hashlib.sha256()
    for path in paths:
        try:
            whole.update(_digest(Path(path), memory).encode())
        except OSError as error:
            raise LoadFailed(f"{path}: cannot be read: {error.strerror}") from error
    return whole.hexdigest()


def _digest(path: Path, memory: Path) -> str:
    with path.open("rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        identity = f"{facts.st_dev}-{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ctime_ns}"
        note = memory / identity
        with contextlib.suppress(OSError, UnicodeDecodeError):
            digest, _, check = note.read_text("ascii").partition(" ")
            if check == _check(identity, digest):
                return digest
        digest = _digest_of(file)
        after = os.fstat(file.fileno())
    is_same = (after.st_size, after.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    if is_same and time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS:
        with contextlib.suppress(OSError):
            memory.mkdir(parents=True, exist_ok=True)
            scratch = memory / scratch_name("digest")
            scratch.write_text(f"{digest} {_check(identity, digest)}", "ascii")
            scratch.replace(note)
    return digest


def _digest_of(file: IO[bytes]) -> str:
    hasher = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def _check(identity: str, digest: str) -> str:
    """Tells a note that was cut off or garbled."""
    return hashlib.sha256(f"{identity} {digest}".encode()).hexdigest()[:16]
