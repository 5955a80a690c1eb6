"""One writer a model: in flows a lock file's path, out comes the right to change what it guards until the block ends.

`flock` is released by the kernel when its holder dies, so a killed pull never leaves a lock behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from headrace.errors import Conflict

__all__ = ["locked"]

_POLL_S = 0.05
_TRIES = 100


@contextlib.contextmanager
def locked(
    path: Path, what: str, *, wait_s: float = float("inf"), say: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Hold the lock file `path` for the block; it is there only while somebody holds it or died holding it.

    While another holds it, `say` is told once who does. Raises `Conflict` naming the holder after `wait_s` seconds.
    """
    descriptor = _acquire(path, what, wait_s, say)
    try:
        holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, what: str, wait_s: float, say: Callable[[str], None]) -> int:
    """The descriptor of the file that lies at `path`, locked."""
    give_up_s = time.monotonic() + wait_s
    told = False
    while True:
        holder = _try(path)
        if isinstance(holder, int):
            return holder
        if time.monotonic() >= give_up_s:
            raise Conflict(f"{what} is being changed by {holder}; try again when it is done")
        if not told:
            say(f"{what}: waiting for {holder}")
            told = True
        time.sleep(_POLL_S)


def _try(path: Path) -> int | str:
    """The locked descriptor, or who holds the lock."""
    for tries_left in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, FileExistsError):  # the last holder tidied the folder away while it was looked for
            if not tries_left:
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have deleted the file between our open and our lock; then this lock guards nothing.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 256, 0).decode(errors="replace") or "another process"
            os.close(descriptor)
            return holder
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return "other processes in quick succession"
