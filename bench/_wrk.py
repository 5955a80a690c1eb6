"""Load by wrk: a URL and a body to post in, requests a second and latencies out, and an error for a run with errors."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from _common import BenchError

__all__ = ["Wrk", "duration_s", "parse_wrk", "run_wrk", "wrk_path"]

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Wrk:
    """One run of wrk. Latencies in seconds; `errors` counts non-2xx responses and socket errors by kind."""

    requests: int
    rps: float
    p50_s: float
    p99_s: float
    errors: dict[str, int] = field(default_factory=dict)


def duration_s(text: str) -> float:
    """Seconds of a wrk duration such as `165.32us`, `1.80ms`, `2.05s`, `1.00m`."""
    match = re.fullmatch(r"([\d.]+)(us|ms|s|m|h)", text)
    if match is None:
        raise BenchError(f"wrk printed a duration that is not understood: {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def parse_wrk(text: str) -> Wrk:
    """Read the output of `wrk --latency`. Raises `BenchError` when a line that must be there is absent."""

    def need(pattern: str) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise BenchError(f"wrk's output has no line like {pattern!r}:\n{text}")
        return match[1]

    errors: dict[str, int] = {}
    if match := re.search(r"^\s*Non-2xx or 3xx responses:\s*(\d+)", text, re.MULTILINE):
        errors["status"] = int(match[1])
    if match := re.search(r"^\s*Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text, re.M):
        names = ("connect", "read", "write", "timeout")
        errors.update({name: int(count) for name, count in zip(names, match.groups(), strict=True) if int(count)})
    return Wrk(
        requests=int(need(r"^\s*(\d+) requests in ")),
        rps=float(need(r"^Requests/sec:\s*([\d.]+)")),
        p50_s=duration_s(need(r"^\s*50%\s+(\S+)")),
        p99_s=duration_s(need(r"^\s*99%\s+(\S+)")),
        errors=errors,
    )


def wrk_path() -> str:
    """Path of the wrk program. Raises `BenchError` with the command that installs it."""
    path = shutil.which("wrk")
    if path is None:
        raise BenchError("wrk is not installed; run: sudo apt-get install -y wrk")
    return path


def run_wrk(url: str, body: bytes, *, connections: int, seconds: float, content_type: str = "application/json") -> Wrk:
    """Post `body` to `url` over `connections` kept-open connections from one wrk thread for `seconds`.

    Raises `BenchError` when any response was not 2xx, any socket failed, or nothing was answered.
    """
    if b"]==]" in body or b"\r" in body:
        raise BenchError("the body contains ']==]' or a carriage return, which a wrk script cannot carry")
    with tempfile.TemporaryDirectory(prefix="headrace-wrk-") as folder:
        script = Path(folder) / "post.lua"
        script.write_bytes(
            b'wrk.method = "POST"\nwrk.headers["Content-Type"] = "' + content_type.encode() + b'"\nwrk.body = [==['
            # a Lua long string drops a first newline, so give it one
            + b"\n" + body + b"]==]\n"
        )  # fmt: skip
        command = [wrk_path(), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", "-s",
                   str(script), url]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode != 0:
        raise BenchError(f"wrk failed ({done.returncode}): {done.stdout}{done.stderr}")
    result = parse_wrk(done.stdout)
    if result.errors or not result.requests:
        raise BenchError(f"{url} with {connections} connections: {result.requests} requests, errors {result.errors}")
    return result
