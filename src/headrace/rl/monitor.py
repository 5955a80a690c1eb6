"""A window into a training run while it runs: HTTP on a thread of its own.

    GET /metrics             Prometheus text
    GET /healthz             200 while the run goes on
    GET /profile?seconds=5   where the time goes: seconds of each stage, and stacks of all threads, sampled

Listens on the loopback interface unless told otherwise, and asks for no password: it tells, and changes nothing.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.core.telemetry import render
from headrace.errors import ConfigError, InvalidInput
from headrace.rl.metrics import TrainMetrics

__all__ = ["monitored", "profile"]

_INTERVAL_S = 0.01
_LONGEST_S = 60.0


def profile(metrics: TrainMetrics, seconds: float) -> dict[str, Any]:
    """Watch for `seconds`: "stages" has the seconds that each took within them, "stacks" how often each collapsed stack
    ("outer;inner") of any thread was seen in `samples` looks. Time in native code counts for whoever called it.

    Raises `InvalidInput` for seconds that are not above 0 and at most 60.
    """
    if not 0 < seconds <= _LONGEST_S:
        raise InvalidInput(f"seconds: expected a number above 0 and at most {_LONGEST_S:g}, got {seconds:g}")
    before, began_s = dict(metrics.stages), time.perf_counter()
    stacks: Counter[str] = Counter()
    samples = 0
    own = threading.get_ident()
    while (now_s := time.perf_counter()) < began_s + seconds:
        for thread, frame in sys._current_frames().items():
            if thread != own:
                stacks[_collapsed(frame)] += 1
        samples += 1
        time.sleep(max(0.0, min(_INTERVAL_S, began_s + seconds - now_s)))
    took_s = time.perf_counter() - began_s
    stages = {name: round(total - before.get(name, 0.0), 6) for name, total in metrics.stages.items()}
    return {"seconds": round(took_s, 3), "samples": samples, "stages": stages, "stacks": dict(stacks.most_common(200))}


def _collapsed(frame: FrameType | None) -> str:
    names = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(names))


@contextmanager
def monitored(metrics: TrainMetrics, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Answer requests about `metrics` within; yields the port (0 chooses one). Raises `ConfigError` for one that is
    taken."""
    handler = type("_Handler", (_Handler,), {"metrics": metrics})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics port {port}: cannot listen on {host}: {error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="headrace-monitor", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    metrics: TrainMetrics
    timeout = 10

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        if target.path == "/metrics":
            content, kind = render(self.metrics.registry, self.headers.get("Accept", ""))
            self._answer(200, content, kind)
        elif target.path == "/healthz":
            self._answer(200, b"ok\n", "text/plain")
        elif target.path == "/profile":
            self._profile(parse_qs(target.query))
        else:
            self._error(404, f"{target.path}: expected /metrics, /healthz or /profile")

    def _profile(self, query: dict[str, list[str]]) -> None:
        wanted = query.get("seconds", ["5"])[0]
        try:
            seconds = float(wanted)
        except ValueError:
            seconds = math.nan
        try:
            self._answer(200, json.dumps(profile(self.metrics, seconds)).encode() + b"\n", "application/json")
        except InvalidInput as error:
            self._error(400, str(error))

    def _error(self, status: int, message: str) -> None:
        self._answer(status, json.dumps({"error": message}).encode() + b"\n", "application/json")

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Training has the terminal."""
