"""The rings beside what Python offers for the same job: messages a second and round trips between two processes.

1 KiB messages go from one process to another through `SpscRing`, `MpmcRing`, `multiprocessing.Queue`, its `Pipe` and
pyzmq (PUSH/PULL over ipc), and back and forth for the latency. The C++ part runs without Python: 64-byte messages
between two threads and two processes, one by one and in batches of 64. Every figure is the median of `--runs` runs,
taken in turns. pyzmq lives in an environment of its own; without it (no network) its rows are left out.

    python bench/core.py                      # makes the peer's environment under .cache/bench-core
    python bench/core.py --json --runs 9
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import ROOT, BenchError, machine, make_venv, median, percentile, progress, table, warn_if_busy
from headrace.core.ring import MpmcRing, SpscRing

MESSAGE = b"x" * 1024
BATCH = 64
TRIPS = 5_000
PACKAGES = ["pyzmq==27.3.0"]
SPAWN = multiprocessing.get_context("spawn")

# Runs in the peer's environment; the parent pulls (or answers) in the same way there.
ZMQ = """
import json, multiprocessing, sys, time, zmq
def socket(context, kind, address, bind):
    made = context.socket(kind)
    (made.bind if bind else made.connect)(address)
    return made
def push(address, count):
    out = socket(zmq.Context(), zmq.PUSH, address, False)
    message = b"x" * 1024
    for _ in range(count):
        out.send(message)
    out.close(); out.context.term()
def answer(there, back, count):
    context = zmq.Context()
    inn, out = socket(context, zmq.PULL, there, False), socket(context, zmq.PUSH, back, False)
    for _ in range(count):
        out.send(inn.recv())
    inn.close(); out.close(); context.term()
if __name__ == "__main__":
    folder, count, trips = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spawn, context = multiprocessing.get_context("spawn"), zmq.Context()
    inn = socket(context, zmq.PULL, f"ipc://{folder}/push", True)
    other = spawn.Process(target=push, args=(f"ipc://{folder}/push", count)); other.start()
    inn.recv(); start = time.perf_counter()
    for _ in range(count - 1):
        inn.recv()
    rate = (count - 1) / (time.perf_counter() - start)
    other.join(); inn.close()
    out = socket(context, zmq.PUSH, f"ipc://{folder}/t", True)
    inn = socket(context, zmq.PULL, f"ipc://{folder}/b", True)
    other = spawn.Process(target=answer, args=(f"ipc://{folder}/t", f"ipc://{folder}/b", trips)); other.start()
    took = []
    for _ in range(trips):
        start = time.perf_counter(); out.send(b"x" * 1024); inn.recv(); took.append(time.perf_counter() - start)
    other.join()
    print(json.dumps([rate, took]))
"""

Measure = Callable[[], dict[str, list[float]]]


def push_ring(ring: SpscRing | MpmcRing, count: int, batch: int) -> None:
    messages = [MESSAGE] * batch
    for _ in range(count // batch):
        if batch == 1:
            ring.push(MESSAGE)
        else:
            ring.push_many(messages)


def answer_ring(there: SpscRing | MpmcRing, back: SpscRing | MpmcRing) -> None:
    for _ in range(TRIPS):
        back.push(there.pop())


def push_queue(queue: Any, count: int) -> None:
    for _ in range(count):
        queue.put(MESSAGE)


def answer_queue(there: Any, back: Any) -> None:
    for _ in range(TRIPS):
        back.put(there.get())


def push_pipe(end: Any, count: int) -> None:
    for _ in range(count):
        end.send_bytes(MESSAGE)


def answer_pipe(end: Any) -> None:
    for _ in range(TRIPS):
        end.send_bytes(end.recv_bytes())


def timed(
    child: Callable[..., None], arguments: tuple[Any, ...], receive: Callable[[], int], count: int
) -> list[float]:
    """Messages a second from the first received to the last; the child's start does not count."""
    process = SPAWN.Process(target=child, args=arguments)
    process.start()
    got = first = receive()
    start = time.perf_counter()
    while got < count:
        got += receive()
    took = time.perf_counter() - start
    process.join()
    return [(count - first) / took]


def trips(child: Callable[..., None], arguments: tuple[Any, ...], once: Callable[[], None]) -> list[float]:
    """Seconds of each round trip but the first tenth, which warms up."""
    process = SPAWN.Process(target=child, args=arguments)
    process.start()
    took = []
    for _ in range(TRIPS):
        start = time.perf_counter()
        once()
        took.append(time.perf_counter() - start)
    process.join()
    return took[TRIPS // 10 :]


def ring_case(kind: type[SpscRing] | type[MpmcRing], batch: int, count: int) -> Measure:
    def run() -> dict[str, list[float]]:
        ring = kind.create(slots=1024, slot_bytes=1024)
        if batch > 1:
            return {"rate": timed(push_ring, (ring, count, batch), lambda: len(ring.pop_many(batch)), count)}
        rate = timed(push_ring, (ring, count, 1), lambda: bool(ring.pop()), count)
        there, back = kind.create(slots=64, slot_bytes=1024), kind.create(slots=64, slot_bytes=1024)
        return {
            "rate": rate,
            "trips": trips(answer_ring, (there, back), lambda: bool((there.push(MESSAGE), back.pop()))),
        }

    return run


def queue_case(count: int) -> dict[str, list[float]]:
    queue, there, back = SPAWN.Queue(1024), SPAWN.Queue(64), SPAWN.Queue(64)
    rate = timed(push_queue, (queue, count), lambda: bool(queue.get()), count)
    return {"rate": rate, "trips": trips(answer_queue, (there, back), lambda: bool((there.put(MESSAGE), back.get())))}


def pipe_case(count: int) -> dict[str, list[float]]:
    (inn, out), (ours, theirs) = SPAWN.Pipe(duplex=False), SPAWN.Pipe()
    rate = timed(push_pipe, (out, count), lambda: bool(inn.recv_bytes()), count)
    return {
        "rate": rate,
        "trips": trips(answer_pipe, (theirs,), lambda: bool((ours.send_bytes(MESSAGE), ours.recv_bytes()))),
    }


def zmq_case(python: Path, count: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        script = Path(folder) / "zmq_case.py"
        script.write_text(ZMQ)
        command = [str(python), str(script), folder, str(count), str(TRIPS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise BenchError(f"the pyzmq program failed:\n{done.stderr[-2000:]}")
    rate, took = json.loads(done.stdout)
    return {"rate": [rate], "trips": took[TRIPS // 10 :]}


def native(runs: int) -> dict[str, float]:
    """Build and run native/bench/ring.cpp; millions of messages a second, and milliseconds for a million pushes."""
    scripts = sysconfig.get_path("scripts")
    cmake, ninja = (shutil.which(name, path=scripts) or shutil.which(name) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        raise BenchError("cmake and ninja are needed for the native part: pip install cmake ninja")
    build = ROOT / "build" / "cpp-release"
    for command in (
        [cmake, "--preset", "release", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"],
        [cmake, "--build", str(build), "--target", "headrace_bench"],
    ):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([str(build / "headrace_bench"), str(runs)], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--runs", type=int, default=5, help="runs of each case (default 5)")
    options, _ = parser.parse_known_args()
    warn_if_busy()
    cases: dict[str, Measure] = {
        "SpscRing": ring_case(SpscRing, 1, 320_000),
        f"SpscRing, {BATCH} at once": ring_case(SpscRing, BATCH, 640_000),
        "MpmcRing": ring_case(MpmcRing, 1, 320_000),
        f"MpmcRing, {BATCH} at once": ring_case(MpmcRing, BATCH, 640_000),
        "multiprocessing.Queue": lambda: queue_case(40_000),
        "multiprocessing.Pipe": lambda: pipe_case(80_000),
    }
    try:
        python = make_venv(ROOT / ".cache" / "bench-core", PACKAGES)
        cases["pyzmq, ipc"] = lambda: zmq_case(python, 80_000)
    except BenchError as error:
        progress(f"without pyzmq: {error}")
    collected: dict[str, dict[str, list[float]]] = {name: {"rate": [], "trips": []} for name in cases}
    for number in range(options.runs):
        progress(f"run {number + 1}/{options.runs}")
        for name, measure in cases.items():
            for what, values in measure().items():
                collected[name][what] += values
    progress("native")
    figures = native(options.runs)

    rates = {name: median(values["rate"]) for name, values in collected.items()}
    queue = rates["multiprocessing.Queue"]
    rows, out = [], {}
    for name, values in collected.items():
        out[name] = {"messages_per_s": round(rates[name]), "times_queue": round(rates[name] / queue, 1)}
        latency = ["", ""]
        if values["trips"]:
            p50, p99 = (percentile(values["trips"], percent) * 1e6 for percent in (50, 99))
            out[name] |= {"round_trip_p50_us": round(p50, 1), "round_trip_p99_us": round(p99, 1)}
            latency = [f"{p50:.1f}", f"{p99:.1f}"]
        rows.append([name, f"{rates[name]:,.0f}", f"{rates[name] / queue:.1f}", *latency])
    if not options.json:
        print(table(["1 KiB, two processes", "messages/s", "x Queue", "round trip p50 us", "p99 us"], rows))
        print()
        print(table(["64 bytes, C++", "M/s (pushes: ms)"], [[name, f"{value:.1f}"] for name, value in figures.items()]))
    print(json.dumps({"bench": "core", "machine": machine(), "python": out, "native": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
