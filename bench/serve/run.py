"""Side by side: Headrace and its peers serve the same tiny ONNX model, driven by wrk, one server alive at a time.

In: which peers, how long, how many rounds. Out: a table, and one JSON line with medians over the rounds and ratios.
Rounds alternate between servers (A B C A B C …), so that a slow minute of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from binary import measure_binary
from mlp import INPUTS, expected, write_mlp
from repository import add_model
from servers import ALL, DEFAULT_PEERS, REQUIREMENTS, Server, requirements

from _common import (
    ROOT,
    BenchError,
    Process,
    free_port,
    machine,
    make_venv,
    median,
    progress,
    request,
    table,
    warn_if_busy,
)
from _wrk import Wrk, run_wrk, wrk_path

Runs = dict[tuple[str, int], list[Wrk]]
"""(server, connections) -> one result a round."""

OUR_CONFIG = 'backend = "onnx"\n[batching]\nmax_batch = 64\n'
"""The peers' batch size is tuned for each number of connections; ours is set once, to the largest of theirs."""


TOLERANCE = 1e-4
FINALISTS = 2


class Stand:
    """Everything a run needs: model files, the peers' environments, and the arguments."""

    def __init__(self, models: Path, pythons: dict[str, str], connections: list[int], seconds: float) -> None:
        self.models, self.pythons, self.connections, self.seconds = models, pythons, connections, seconds
        self.x = [round(v, 4) for v in np.random.default_rng(7).normal(size=INPUTS).tolist()]

    def start(self, server: Server, setting: str) -> tuple[Process, int]:
        port = free_port()
        command = server.settings[setting](self.pythons[server.name], self.models, port)
        return Process(command), port

    def check(self, server: Server, port: int) -> None:
        """Raise unless the server's answers to three different inputs are numerically right."""
        rng = np.random.default_rng(11)
        for x in (self.x, *rng.normal(size=(2, INPUTS)).round(4).tolist()):
            status, body = request(port, server.path, server.body(x))
            if status != 200:
                raise BenchError(f"{server.name} answered {status}: {body[:500]!r}")
            got, want = np.asarray(server.answer(body)), expected([x])[0]
            if got.shape != want.shape or not np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE):
                raise BenchError(f"{server.name} answered {got.tolist()}, expected {want.tolist()}")

    def drive(self, server: Server, setting: str, connections: list[int], seconds: float) -> dict[int, Wrk]:
        """Start the server, check it, warm it, measure it at each number of connections, stop it."""
        process, port = self.start(server, setting)
        url, body = f"http://127.0.0.1:{port}{server.path}", server.body(self.x)
        with process:
            process.wait_ready(port, server.path, body)
            self.check(server, port)
            run_wrk(url, body, connections=16, seconds=1)
            try:
                return {c: run_wrk(url, body, connections=c, seconds=seconds) for c in connections}
            except BenchError as error:
                raise BenchError(f"{server.name} ({setting}): {error}\n{process.tail()}") from None


def tune(stand: Stand, server: Server, seconds: float) -> dict[int, str]:
    """The setting with the most requests/s for each number of connections.

    Every setting runs once; the best `FINALISTS` for some number run again, and a setting counts by its better run, so
    that one slow second of the machine costs no peer its best setting.
    """
    if len(server.settings) == 1:
        return dict.fromkeys(stand.connections, next(iter(server.settings)))
    rates: dict[int, dict[str, float]] = {c: {} for c in stand.connections}

    def ranked(c: int) -> list[str]:
        return sorted(rates[c], key=lambda setting: -rates[c][setting])

    for turn in ("first", "final"):
        finalists = {setting for c in stand.connections for setting in ranked(c)[:FINALISTS]}
        for setting in [s for s in server.settings if turn == "first" or s in finalists]:
            for c, wrk in stand.drive(server, setting, stand.connections, seconds).items():
                rates[c][setting] = max(wrk.rps, rates[c].get(setting, 0.0))
            found = ", ".join(f"c{c} {rates[c][setting]:,.0f}/s" for c in stand.connections)
            progress(f"tuning {server.name}, {turn} turn: {setting}: {found}")
    return {c: ranked(c)[0] for c in stand.connections}


def measure(stand: Stand, servers: list[Server], best: dict[str, dict[int, str]], rounds: int) -> Runs:
    runs: Runs = {}
    for turn in range(rounds):
        for server in servers:
            chosen = best[server.name]
            for setting in dict.fromkeys(chosen.values()):
                counts = [c for c in stand.connections if chosen[c] == setting]
                for c, wrk in stand.drive(server, setting, counts, stand.seconds).items():
                    runs.setdefault((server.name, c), []).append(wrk)
                    progress(f"round {turn + 1}/{rounds}: {server.name} c{c}: {wrk.rps:,.0f}/s "
                             f"p50 {wrk.p50_s * 1e3:.2f} ms p99 {wrk.p99_s * 1e3:.2f} ms")  # fmt: skip
    return runs


def medians(runs: Runs) -> dict[tuple[str, int], dict[str, float]]:
    """Medians over the rounds, of each figure by itself."""
    return {
        key: {
            "rps": round(median(w.rps for w in wrks), 1),
            "p50_ms": round(median(w.p50_s for w in wrks) * 1e3, 4),
            "p99_ms": round(median(w.p99_s for w in wrks) * 1e3, 4),
            "rps_min": round(min(w.rps for w in wrks), 1),
            "rps_max": round(max(w.rps for w in wrks), 1),
        }
        for key, wrks in runs.items()
    }


def headline(found: dict[tuple[str, int], dict[str, float]]) -> dict[str, float | None]:
    """The figures that are compared between runs; None where a server or connection count was left out."""

    def ratio(a: tuple[str, int], b: tuple[str, int], what: str) -> float | None:
        return round(found[a][what] / found[b][what], 4) if a in found and b in found else None

    result: dict[str, float | None] = {}
    for c in sorted({c for _, c in found}):
        own = ("headrace", c)
        result[f"c{c}_rps"] = found[own]["rps"] if own in found else None
        for peer in sorted({name for name, _ in found} - {"headrace"}):
            result[f"c{c}_ratio_{peer}"] = ratio(own, (peer, c), "rps")
            result[f"c{c}_p50_ratio_{peer}"] = ratio(own, (peer, c), "p50_ms")
        result[f"c{c}_p99_over_p50"] = (
            round(found[own]["p99_ms"] / found[own]["p50_ms"], 3) if own in found else None
        )  # fmt: skip
    return result


def make_environments(peers: list[str]) -> dict[str, str]:
    """Python of each peer. MLServer pins old packages, so it gets an environment of its own."""
    pythons = {"headrace": sys.executable}
    cache = ROOT / ".cache" / "bench-serve"
    if shared := [name for name in peers if name != "mlserver"]:
        # all shared peers at once, so that one environment serves every choice of --peers
        python = str(make_venv(cache / "venv", requirements(DEFAULT_PEERS)))
        pythons.update(dict.fromkeys(shared, python))
    if "mlserver" in peers:
        pythons["mlserver"] = str(make_venv(cache / "venv-mlserver", requirements(["mlserver"])))
    return pythons


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace bench serve", description=__doc__.splitlines()[0])
    names = [name for name in ALL if name != "headrace"]
    parser.add_argument("--json", action="store_true", help="print only the JSON line on stdout")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all servers (default 5)")
    parser.add_argument("--tune-seconds", type=float, default=2.0, help="length of one tuning run (default 2)")
    parser.add_argument("--connections", default="1,16,64", help="comma-separated (default 1,16,64)")
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help=f"any of {','.join(names)}, or none")
    parser.add_argument("--only", choices=["mlp", "binary"], help="only the comparison, or only binary against JSON")
    options = parser.parse_args(arguments)
    options.peers = [] if options.peers in ("", "none") else options.peers.split(",")
    if unknown := sorted(set(options.peers) - set(names)):
        parser.error(f"--peers: unknown {', '.join(unknown)}; choose from {', '.join(names)}, or none")
    try:
        options.connections = sorted({int(text) for text in options.connections.split(",")})
    except ValueError:
        parser.error(f"--connections: expected whole numbers like 1,16,64, got {options.connections!r}")
    if options.connections[0] < 1 or options.rounds < 1 or options.seconds < 1 or options.tune_seconds < 1:
        parser.error("--connections, --rounds, --seconds and --tune-seconds must each be at least 1")
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    warn_if_busy()
    result: dict[str, Any] = {"bench": "serve", "machine": machine()}
    result["versions"] = {
        **{name: version(name) for name in ("headrace", "onnxruntime", "numpy")},
        **dict(REQUIREMENTS[package].split("==") for name in options.peers for package in ALL[name].packages),
    }
    with tempfile.TemporaryDirectory(prefix="headrace-bench-serve-") as folder:
        models = Path(folder)
        if options.only != "binary":
            wrk_path()
            pythons = make_environments(options.peers)
            write_mlp(models / "mlp.onnx")
            add_model(models / "repository", "mlp", models / "mlp.onnx", OUR_CONFIG)
            stand = Stand(models, pythons, options.connections, options.seconds)
            servers = [ALL[name] for name in ("headrace", *options.peers)]
            best = {server.name: tune(stand, server, options.tune_seconds) for server in servers}
            found = medians(measure(stand, servers, best, options.rounds))
            result.update(headline(found))
            result["runs"] = [
                {"server": name, "connections": c, "setting": best[name][c], **figures}
                for (name, c), figures in sorted(found.items(), key=lambda item: (item[0][1], -item[1]["rps"]))
            ]
            result.update(rounds=options.rounds, seconds=options.seconds)
        if options.only != "mlp":
            result.update(measure_binary(models / "binary"))
    return result


def show(result: dict[str, Any]) -> str:
    parts = []
    if "runs" in result:
        rows = [
            (f"c{r['connections']} {r['server']}", f"{r['rps']:,.0f}", f"{r['p50_ms']:.3f}", f"{r['p99_ms']:.3f}",
             f"{r['rps_min']:,.0f}-{r['rps_max']:,.0f}", r["setting"])
            for r in result["runs"]
        ]  # fmt: skip
        parts.append(table(["", "requests/s", "p50 ms", "p99 ms", "min-max requests/s", "setting"], rows))
    if "binary_ratio_json" in result:
        rows = [
            (b["case"], f"{b['request_mb']:.1f}", f"{b['response_mb']:.1f}", f"{b['p50_ms']:,.1f}", f"{b['rps']:.2f}")
            for b in result["binary_runs"]
        ]
        parts.append(table(["16 MB tensor", "request MB", "response MB", "p50 ms", "requests/s"], rows))
    return "\n\n".join(parts)


def main() -> int:
    options = parse()
    try:
        result = run(options)
    except BenchError as error:
        progress(f"bench serve: {error}")
        return 1
    if not options.json:
        print(show(result), end="\n\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
