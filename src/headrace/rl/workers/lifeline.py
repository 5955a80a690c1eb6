"""No orphans: a pipe whose other end only the parent holds goes in; when the parent dies, this process ends too.

A process that waits for its parent sees its rings abandoned and ends in order. This is for one that does not wait,
because an environment hangs: a thread notices that the pipe has no other end any more, removes the shared memory of the
dead, and ends the process. Should an environment hold the interpreter's lock for ever, so that no thread runs, the
kernel does it: SIGIO tells of the pipe's end, and its handler is the C library's own `alarm`, so that SIGALRM ends the
process as many seconds later as SIGIO's number is (29).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import threading
import time

from headrace.core import shm

__all__ = ["Lifeline"]

_GRACE_S = 1.0


class Lifeline:
    """Holds this process to the life of whoever has the write end of the pipe `fd` (the read end)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._parent = os.getppid()
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            libc.signal.restype = ctypes.c_void_p
            libc.signal(signal.SIGIO, ctypes.cast(libc.alarm, ctypes.c_void_p))
            fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _watch(self) -> None:
        os.read(self._fd, 1)  # returns when there is no write end any more
        deadline_s = time.monotonic() + _GRACE_S
        while os.getppid() == self._parent and time.monotonic() < deadline_s:
            time.sleep(0.005)  # its files are closed before it counts as dead
        with contextlib.suppress(OSError):
            shm.sweep()
        time.sleep(_GRACE_S)  # for the environments to be closed in order, if the main thread can
        os._exit(1)
