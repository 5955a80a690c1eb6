"""One worker process as its parent sees it: a pickled job in, a running program with a ring of commands out.

The program is started afresh (fork and exec), never forked from a parent with threads, and needs no `if __name__ ==
"__main__"` in the parent's script.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from headrace.core.ring import SpscRing
from headrace.rl.workers.messages import HEADER_BYTES, push

__all__ = ["WorkerProcess"]

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from headrace.rl.workers.worker import main
main(*sys.argv[1:])
"""
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SLOT_BYTES = 1024 + HEADER_BYTES


class WorkerProcess:
    """Started by the constructor, which does not wait for it. `payload`: name of the segment with the pickled `Job`."""

    def __init__(self, worker: int, epoch: int, payload: str, envs: int) -> None:
        self.worker, self.epoch = worker, epoch
        slots = 1 << (envs + 8).bit_length()
        self.commands = SpscRing.create(slots=slots, slot_bytes=_SLOT_BYTES)
        self.sent = 0
        read_fd, self._lifeline = os.pipe()
        arguments = [json.dumps(sys.path), payload, str(epoch), self.commands.name, str(read_fd)]
        try:
            # A group of its own: Ctrl-C is for the parent, and what an environment has started can be killed with it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(read_fd,),
                process_group=0,
                env={**_THREADS, **os.environ},
            )
        except BaseException:
            os.close(self._lifeline)
            self.commands.unlink()
            raise
        finally:
            os.close(read_fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ending(self) -> str | None:
        """How it ended, in words; None while it runs. Leaves the dead unreaped, so that its pid stays its own."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "has ended"
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return f"exited with status {found.si_status}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(found.si_status).name}"
        return f"killed by signal {found.si_status}"

    @property
    def rss_bytes(self) -> int:
        """Resident memory; 0 once it has ended."""
        try:
            with open(f"/proc/{self.pid}/statm") as numbers:
                return int(numbers.read().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            return 0

    def send(self, kind: bytes, payload: bytes = b"") -> int:
        """Send a command and return its number. Raises `Unavailable` or `ChannelClosed` when it can take none."""
        self.sent += 1
        push(self.commands, kind, self.worker, self.epoch, self.sent, payload)
        return self.sent

    def quit(self) -> None:
        """Ask it to end after what it was asked for before."""
        with contextlib.suppress(Exception):
            self.commands.try_push(b"Q" + b"\0" * (HEADER_BYTES - 1))

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        deadline_s = time.monotonic() + timeout_s
        while self.ending is None:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        """End it and what it has started, now; and let go of the ring. Again does nothing."""
        if self._lifeline < 0:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        os.close(self._lifeline)
        self._lifeline = -1
        self.commands.close()
        self.commands.unlink()
