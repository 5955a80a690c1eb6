"""Soak test of a real `headrace serve`: good, broken, huge, slow and abandoned requests, and every answer judged.

In: minutes, connections, a seed. Out: a table of kind x answer, memory and descriptors over time, and one JSON line.
The exit status is 1 when an answer was unexpected or mixed up, memory grew, descriptors leaked, or the server did not
end gracefully.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "serve"))

from mlp import write_affine
from repository import add_model, add_pipeline
from soak_client import Connection
from soak_kinds import COLUMNS, Client, Violation, in_flight, one
from soak_samples import Samples

from _common import BenchError, Process, free_port, headrace_command, machine, median, percentile, progress, table

HERE = Path(__file__).resolve().parent / "serve"
KEEP_VIOLATIONS = 20
DRAINING = 8

PIPELINE = """\
consumes = "text"
[[stage]]
op = "soak_stages:Parse"
with = {{ delay_s = {delay_s} }}
[[stage]]
op = "infer"
with = {{ model = "affine" }}
[[stage]]
op = "soak_stages:Answer"
"""


def make_repository(root: Path) -> Path:
    write_affine(root / "affine.onnx", COLUMNS)
    models = root / "models"
    config = 'backend = "onnx"\nfile = "affine.onnx"\nmax_rows = 1_000_000\n'
    add_model(models, "affine", root / "affine.onnx", config)
    add_pipeline(models, "affine-pipeline", PIPELINE.format(delay_s=0.0), HERE / "soak_stages.py")
    add_pipeline(models, "slow-pipeline", PIPELINE.format(delay_s=0.5), HERE / "soak_stages.py")
    return models


class Soak:
    """The load, and what came of it."""

    def __init__(self, port: int, connections: int, seed: int) -> None:
        self.port, self.connections, self.seed = port, connections, seed
        self.counts: Counter[tuple[str, str]] = Counter()
        self.violations: list[str] = []
        self.probe_s: list[float] = []
        self.own_lag_s: list[float] = []

    async def run(self, server: Process, seconds: float, samples: Samples) -> None:
        """Load the server for `seconds`, sample it each second, then ask it to end while it has requests in hand."""
        deadline = time.monotonic() + seconds
        samples.take()
        async with asyncio.TaskGroup() as group:
            for number in range(self.connections):
                group.create_task(self._client(server, number, deadline))
            group.create_task(self._probe(deadline))
            group.create_task(self._sample(server, deadline, samples))
        await asyncio.sleep(2)
        if server.running:
            samples.take()

    async def _client(self, server: Process, number: int, deadline: float) -> None:
        client = Client(self.port, number, self.seed)
        while time.monotonic() < deadline and server.running:
            try:
                self.counts[await one(client)] += 1
            except (Violation, OSError) as error:
                self._violated(f"client {number}: {error}")
                await asyncio.sleep(0.1)
        await client.connection.close()

    async def _probe(self, deadline: float) -> None:
        """Liveness answers ten times a second: what a small request feels while the others do their worst."""
        connection = Connection(self.port)
        while (now := time.monotonic()) < deadline:
            started = time.perf_counter()
            try:
                await connection.send(b"GET /healthz HTTP/1.1\r\nHost: soak\r\n\r\n")
                answer = await connection.receive()
                if answer.status != 200:
                    self._violated(f"/healthz: status {answer.status}")
            except Exception as error:
                self._violated(f"/healthz: {type(error).__name__}: {error}")
                await connection.close()
            self.probe_s.append(time.perf_counter() - started)
            await asyncio.sleep(max(0.0, now + 0.1 - time.monotonic()))
        await connection.close()

    async def _sample(self, server: Process, deadline: float, samples: Samples) -> None:
        while time.monotonic() < deadline and server.running:
            started = time.perf_counter()
            await asyncio.sleep(1)
            self.own_lag_s.append(time.perf_counter() - started - 1)
            samples.take()
            if len(samples.rss_mb) % 30 == 0:
                progress(f"{len(samples.rss_mb)} s: {sum(self.counts.values()):,} requests, "
                         f"{samples.rss_mb[-1]:.1f} MB, {len(self.violations)} violations")  # fmt: skip

    async def end(self, server: Process) -> int:
        """SIGTERM while `DRAINING` slow requests run: each must still be answered; then the exit status."""
        running = await in_flight(self.port, DRAINING)
        await asyncio.sleep(0.2)
        status = asyncio.create_task(asyncio.to_thread(server.terminate, 40.0))
        for answer in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(answer, BaseException):
                self._violated(f"while draining: {type(answer).__name__}: {answer}")
            else:
                self.counts["in flight at SIGTERM", answer] += 1
        return await status

    def _violated(self, text: str) -> None:
        self.violations.append(text)
        if len(self.violations) <= KEEP_VIOLATIONS:
            progress(f"VIOLATION {text}")


async def server_lag(port: int) -> dict[str, float]:
    """Event-loop lag as the server itself measured it: the bucket bounds that p50, p99 and all of it lie below."""
    connection = Connection(port)
    await connection.send(b"GET /metrics HTTP/1.1\r\nHost: soak\r\n\r\n")
    text = (await connection.receive()).body.decode()
    await connection.close()
    pattern = r'^headrace_event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)'
    buckets = sorted((float(le), float(n)) for le, n in re.findall(pattern, text, re.MULTILINE))
    if not buckets or not buckets[-1][1]:
        return {}
    total = buckets[-1][1]
    return {
        f"p{share * 100:g}_below_ms": next(le for le, n in buckets if n >= share * total) * 1e3
        for share in (0.5, 0.99, 0.999)
    }


async def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    port = free_port()
    command = headrace_command("serve", str(make_repository(folder)), "--host", "127.0.0.1", "--port", str(port))
    with Process(command) as server:
        await asyncio.to_thread(server.wait_ready, port, "/v2/health/ready")
        samples = Samples(server.pid)
        load = Soak(port, options.connections, options.seed)
        started = time.monotonic()
        await load.run(server, options.minutes * 60, samples)
        took_s = time.monotonic() - started
        if not server.running:
            raise BenchError(f"the server died under load:\n{server.tail()}")
        lag = await server_lag(port)
        status = await load.end(server)
        tail = server.tail()
    problems = [*load.violations[:KEEP_VIOLATIONS]]
    problems += samples.problems(options.connections)
    if status != 0:
        problems.append(f"exit status {status} after SIGTERM instead of 0:\n{tail}")
    if "Traceback" in tail:
        problems.append(f"the server's log ends with a traceback:\n{tail}")
    kinds: dict[str, dict[str, int]] = {}
    for (kind, answer), count in sorted(load.counts.items()):
        kinds.setdefault(kind, {})[answer] = count
    return {
        "bench": "soak",
        "passed": not problems,
        "problems": problems,
        "violations": len(load.violations),
        "minutes": options.minutes,
        "connections": options.connections,
        "seed": options.seed,
        "requests": sum(load.counts.values()),
        "rps": round(sum(load.counts.values()) / took_s, 1),
        "kinds": kinds,
        "exit_status": status,
        **samples.report(),
        "healthz_ms": {f"p{p:g}": round(percentile(load.probe_s, p) * 1e3, 3) for p in (50, 99, 100)},
        "event_loop_lag": lag,
        "load_generator_lag_ms": round(median(load.own_lag_s or [0.0]) * 1e3, 3),
        "machine": machine(),
    }


def show(result: dict[str, Any]) -> str:
    answers = sorted({answer for counts in result["kinds"].values() for answer in counts})
    rows = [
        (kind, *(f"{counts[answer]:,}" if answer in counts else "" for answer in answers))
        for kind, counts in result["kinds"].items()
    ]
    lag = ", ".join(f"{name[:-9]} < {value:g} ms" for name, value in result["event_loop_lag"].items()) or "not measured"
    probe = ", ".join(f"{name} {value:g} ms" for name, value in result["healthz_ms"].items())
    facts = [
        f"{result['requests']:,} requests in {result['minutes']:g} min, {result['rps']:,.0f}/s",
        f"memory MB: first minute {result['rss_first_minute_mb']}, last minute {result['rss_last_minute_mb']}, "
        f"peak {result['rss_max_mb']}, slope after the first minute {result['rss_slope_mb_per_min']} MB/min",
        f"descriptors: start {result['fds_start']}, most {result['fds_max']}, end {result['fds_end']}",
        f"/healthz under load: {probe}; event-loop lag: {lag}",
        f"exit status after SIGTERM: {result['exit_status']}",
        "PASSED" if result["passed"] else "FAILED\n" + "\n".join(result["problems"]),
    ]
    return "\n".join([table(["kind", *answers], rows), "", *facts])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace bench soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the load lasts (default 10)")
    parser.add_argument("--connections", type=int, default=32, help="clients at a time (default 32)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the mix (default 1)")
    parser.add_argument("--json", action="store_true", help="print only the JSON line on stdout")
    options = parser.parse_args(arguments)
    if not 0.05 <= options.minutes <= 24 * 60 or not 1 <= options.connections <= 1024:
        parser.error("--minutes must be 0.05 to 1440, --connections 1 to 1024")
    return options


def main() -> int:
    options = parse()
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
            result = asyncio.run(soak(options, Path(folder)))
    except BenchError as error:
        progress(f"bench soak: {error}")
        return 1
    if not options.json:
        print(show(result), end="\n\n")
    print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
