"""What one observation costs: our series beside prometheus_client's own, in the same run, in nanoseconds.

    python bench/telemetry.py                 # a table and one JSON line
    python bench/telemetry.py --json          # the JSON line only

The two sides are timed in turns, and the smallest of the rounds counts: anything above it is the machine's noise. The
loop's own cost is measured and taken off both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import repeat

import prometheus_client

from _common import machine, progress, table
from headrace.core.context import Context
from headrace.core.telemetry import LATENCY_S, Registry, Tracer

CALLS = 100_000


def cost_ns(function: Callable[[], object]) -> float:
    """Nanoseconds a call, the loop included."""
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, CALLS):
        function()
    return (time.perf_counter_ns() - began_ns) / CALLS


def cases() -> dict[str, tuple[Callable[[], object], Callable[[], object] | None]]:
    """name -> (ours, the peer's counterpart if there is one); the labels are resolved beforehand on both sides."""
    ours, off, peer = Registry(), Registry(enabled=False), prometheus_client.CollectorRegistry()
    histogram = ours.histogram("seconds", "Seconds.", ("model",)).labels(model="m")
    counter = ours.counter("hits", "Hits.", ("model",)).labels(model="m")
    gauge = ours.gauge("depth", "Depth.", ("model",)).labels(model="m")
    silent = off.histogram("seconds", "Seconds.", ("model",)).labels(model="m")
    peers_histogram = prometheus_client.Histogram(
        "seconds", "Seconds.", ["model"], registry=peer, buckets=LATENCY_S
    ).labels("m")
    peers_counter = prometheus_client.Counter("hits", "Hits.", ["model"], registry=peer).labels("m")
    peers_gauge = prometheus_client.Gauge("depth", "Depth.", ["model"], registry=peer).labels("m")
    tracer, ctx = Tracer(), Context("r")

    def untraced() -> None:
        with tracer.span("stage", ctx):
            pass

    return {
        "histogram.observe": (lambda: histogram.observe(0.0031), lambda: peers_histogram.observe(0.0031)),
        "counter.inc": (lambda: counter.inc(1.0), lambda: peers_counter.inc(1.0)),
        "gauge.set": (lambda: gauge.set(3.0), lambda: peers_gauge.set(3.0)),
        "histogram.observe, disabled": (lambda: silent.observe(0.0031), None),
        "span, not sampled": (untraced, None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    found = cases()
    best: dict[str, list[float]] = {name: [float("inf"), float("inf")] for name in found}
    empty = float("inf")
    for number in range(arguments.rounds):
        progress(f"round {number + 1} of {arguments.rounds}")
        empty = min(empty, cost_ns(lambda: None))
        for name, sides in found.items():
            for side, function in enumerate(sides):
                if function is not None:
                    best[name][side] = min(best[name][side], cost_ns(function))
    rows, results = [], {}
    for name, (ours_ns, peers_ns) in best.items():
        ours, peers = ours_ns - empty, peers_ns - empty
        has_peer = found[name][1] is not None
        results[name] = {"ns": round(ours, 1)}
        if has_peer:
            results[name] |= {"prometheus_client_ns": round(peers, 1), "ratio": round(peers / ours, 2)}
        rows.append(
            [name, f"{ours:.0f}", f"{peers:.0f}" if has_peer else "", f"{peers / ours:.2f}" if has_peer else ""]
        )
    if not arguments.json:
        print(table(["nanoseconds a call", "headrace", "prometheus_client", "ratio"], rows))
    print(json.dumps({"bench": "telemetry", "machine": machine(), "results": results}))


if __name__ == "__main__":
    main()
