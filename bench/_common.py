"""What the benchmark programs share: medians, facts about the machine, servers by pid, environments.

Every program prints a table (progress on stderr) and one JSON line; with `--json` only the JSON line goes to stdout.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from headrace.core.machine import machine as describe_machine

__all__ = [
    "ROOT",
    "BenchError",
    "Process",
    "free_port",
    "headrace_command",
    "machine",
    "make_venv",
    "median",
    "percentile",
    "progress",
    "request",
    "table",
    "warn_if_busy",
]

ROOT = Path(__file__).resolve().parents[1]


class BenchError(Exception):
    """The benchmark cannot run or its result may not be trusted; the text says why and what to do."""


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile of at least one number, `percent` in 0..100."""
    ordered = sorted(values)
    if not ordered:
        raise BenchError("percentile of no values")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def machine() -> dict[str, object]:
    """CPU model, usable cores, memory, kernel and Python: what a figure is worth nothing without."""
    found = describe_machine()
    return {
        "cpu": found.cpu_model or found.architecture,
        "cores": found.usable_cpus,
        "memory_gib": round(found.memory_bytes / 2**30, 1),
        "kernel": found.kernel,
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def warn_if_busy() -> None:
    """Say so when the machine has other work: its figures are then of little use."""
    if os.getloadavg()[0] > 0.5:
        progress(f"WARNING: the load is {os.getloadavg()[0]:.1f} before the first run; the figures will be noisy")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain-text table; the first column is left-aligned, the others right-aligned."""
    grid = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
             for line in grid]  # fmt: skip
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


# -- servers -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A loopback TCP port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def headrace_command(*arguments: str) -> list[str]:
    """The command line of this checkout's own `headrace`."""
    return [sys.executable, "-m", "headrace", *arguments]


class Process:
    """A server started by us in a process group of its own, and ended by that group.

    Use as a context manager: on leaving, SIGTERM, then SIGKILL after `grace_s`. The tail of its output is part of every
    error.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, grace_s: float = 10.0) -> None:
        self.command = list(command)
        self.grace_s = grace_s
        self._env = {**os.environ, **(env or {})}
        self._log = tempfile.TemporaryFile(prefix="headrace-bench-")  # noqa: SIM115  closed in `stop`
        self._process: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Process:
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tail(self, size: int = 3000) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - size))
        return self._log.read().decode("utf-8", "replace")

    def wait_ready(self, port: int, path: str, body: bytes | None = None, timeout_s: float = 60.0) -> None:
        """Return once GET (or POST of `body`) on `path` answers 2xx; raise with the log's tail when it never does."""
        deadline, last = time.monotonic() + timeout_s, "nothing listens"
        while time.monotonic() < deadline:
            if not self.running:
                raise BenchError(f"{self.command} ended before it was ready:\n{self.tail()}")
            try:
                status, _ = request(port, path, body)
            except (OSError, http.client.HTTPException) as error:
                last = str(error)
            else:
                if 200 <= status < 300:
                    return
                last = f"status {status}"
            time.sleep(0.1)
        raise BenchError(f"{self.command} was not ready within {timeout_s:.0f} s ({last}):\n{self.tail()}")

    def terminate(self, timeout_s: float) -> int:
        """SIGTERM to the server alone; its exit status. Raises `BenchError` when it does not end in time."""
        if self._process is None:
            raise BenchError("the server is not running")
        self._process.send_signal(signal.SIGTERM)
        try:
            self.returncode = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the server did not end within {timeout_s:.0f} s of SIGTERM:\n{self.tail()}") from None
        return self.returncode

    def stop(self) -> None:
        """End the whole group and wait for it; safe to call again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.grace_s)
            # workers may outlive their parent: the group is ours, so ending it can hit nobody else
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.returncode = self._process.wait()
            give_up = time.monotonic() + 2.0
            with contextlib.suppress(ProcessLookupError):
                while time.monotonic() < give_up:
                    os.killpg(self._process.pid, 0)
                    time.sleep(0.01)
            self._process = None
        self._log.close()


def request(
    port: int, path: str, body: bytes | None = None, content_type: str = "application/json", timeout_s: float = 30.0
) -> tuple[int, bytes]:
    """One HTTP exchange with a loopback server: GET without a body, POST with one. Returns (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        headers = {} if body is None else {"Content-Type": content_type}
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


# -- environments ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make_venv(folder: Path, requirements: Sequence[str]) -> Path:
    """Make (or reuse) a virtual environment holding exactly pinned `requirements`; returns its Python.

    The environment is reused while the requirements and the Python version are unchanged. Progress goes to stderr,
    one line a package. Raises `BenchError` when pip fails.
    """
    key = json.dumps([sys.version, *sorted(requirements)])
    digest = hashlib.sha256(key.encode()).hexdigest()
    stamp, python = folder / "headrace-bench.sha256", folder / "bin" / "python"
    with _locked(folder.with_name(folder.name + ".lock")):
        if python.exists() and stamp.exists() and stamp.read_text() == digest:
            progress(f"peers' environment: reusing {folder}")
            return python
        progress(f"peers' environment: making {folder} (about a minute)")
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(folder)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        pins = folder / "pins.txt"
        pins.write_text("".join(re.sub(r"\[.*?\]", "", line) + "\n" for line in requirements))
        for number, requirement in enumerate(requirements, 1):
            progress(f"  {number}/{len(requirements)} {requirement}")
            # one at a time shows how far it is; the pins keep a later package from moving an earlier one
            done = subprocess.run([*pip, "-c", str(pins), requirement], stdout=sys.stderr, check=False)
            if done.returncode != 0:
                raise BenchError(f"pip could not install {requirement} into {folder} (exit status {done.returncode})")
        stamp.write_text(digest)
    return python
