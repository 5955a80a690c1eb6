"""The `ocr` pipeline beside RapidOCR, which publishes the models: errors on the same pictures, and pictures a second.

Ours is a real server (`headrace serve`) asked by 16 clients over HTTP. The reference runs in an environment and a
process of its own without any server, in its default setting and in the best of {1, 2} threads a model x {1, 2, 16}
client threads. Both have the same two cores, get the same encoded pictures of `headrace.testing.images`, and take
turns; the figures are medians. Character error rates are over all pictures, with and without blanks.

    python bench/ocr.py                       # about ten minutes; makes the reference's environment under .cache/bench/
    python bench/ocr.py --seconds 5 --rounds 3 --only page,label
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import (
    ROOT,
    BenchError,
    Process,
    free_port,
    headrace_command,
    machine,
    make_venv,
    median,
    progress,
    table,
    warn_if_busy,
)
from headrace.errors import Unavailable
from headrace.serve.client import Client
from headrace.store.progress import make_progress
from headrace.store.pull import pull_recipe
from headrace.store.versions import ModelStore
from headrace.testing.images import PAGES, TextImage, character_errors, edit_distance, encode_image, render_page
from headrace.testing.photographs import PHOTOGRAPHS, Photograph, fetch_photograph

PACKAGES = ["rapidocr-onnxruntime==1.4.4", "onnxruntime==1.32.0", "opencv-python==5.0.0.93", "numpy==2.4.6"]
CORES = 2
CLIENTS = 16

# One JSON command a line: {"threads"} loads the models, {"clients", "seconds"} measures, {"read": true} reads all.
REFERENCE = """
import base64, json, sys, threading, time
from rapidocr_onnxruntime import RapidOCR
pictures = [base64.b64decode(line) for line in open(sys.argv[1])]
engine = None
def read(data):
    found, _ = engine(data)
    return [[text, [[float(x), float(y)] for x, y in box]] for box, text, _ in found or []]
def measure(clients, seconds):
    counts, end = [0] * clients, time.perf_counter() + seconds
    def client(me):
        at = me
        while time.perf_counter() < end:
            read(pictures[at % len(pictures)])
            counts[me] += 1
            at += clients
    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    start = time.perf_counter()
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return sum(counts) / (time.perf_counter() - start)
for line in sys.stdin:
    command = json.loads(line)
    if "threads" in command:
        engine = RapidOCR(intra_op_num_threads=command["threads"], inter_op_num_threads=-1)
        answer = len(read(pictures[0]))
    elif command.get("read"):
        answer = [read(data) for data in pictures]
    else:
        answer = measure(command["clients"], command["seconds"])
    print(json.dumps(answer), flush=True)
"""


class Reference:
    """The reference in its own process, pinned to the cores of this one."""

    def __init__(self, python: Path, pictures: Sequence[bytes], folder: Path) -> None:
        listing = folder / "pictures.txt"
        listing.write_text("".join(base64.b64encode(data).decode() + "\n" for data in pictures))
        self._log = (folder / "reference.log").open("w+b")
        self._process = subprocess.Popen(
            [str(python), "-c", REFERENCE, str(listing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._threads: int | None = None

    def ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise BenchError(f"the reference ended:\n{self._log.read()[-3000:].decode(errors='replace')}")
        return json.loads(line)

    def rate(self, threads: int, clients: int, seconds: float) -> float:
        """Pictures a second with `threads` a model (-1: its default) and `clients` threads calling it."""
        if threads != self._threads:
            self.ask(threads=threads)
            self._threads = threads
        return float(self.ask(clients=clients, seconds=seconds))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()


def our_rate(port: int, pictures: Sequence[bytes], clients: int, seconds: float) -> float:
    """Pictures a second over HTTP: `clients` threads, one kept-open connection each, one picture after the other."""
    counts, failures = [0] * clients, []
    end = time.perf_counter() + seconds

    def client(me: int) -> None:
        try:
            with Client(f"http://127.0.0.1:{port}") as connection:
                for at in itertools.count(me, clients):
                    if time.perf_counter() >= end:
                        return
                    connection.pipeline("ocr", pictures[at % len(pictures)], "image/png")
                    counts[me] += 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchError(f"{len(failures)} of our clients failed: {failures[0]}")
    return sum(counts) / (time.perf_counter() - start)


def error_rates(pages: Sequence[TextImage], found: Sequence[Sequence[tuple[str, Any]]]) -> dict[str, Any]:
    """Character error rates over all pages, and by kind of page (blanks counted)."""
    by_kind: dict[str, list[int]] = {}
    total, tight = [0, 0], [0, 0]
    for page, lines in zip(pages, found, strict=True):
        with_blanks = character_errors(page.lines, lines)
        without = character_errors(page.lines, lines, spaces=False)
        for sums, pair in (
            (total, with_blanks),
            (tight, without),
            (by_kind.setdefault(page.spec.name, [0, 0]), without),
        ):
            sums[0] += pair[0]
            sums[1] += pair[1]
    kinds = {name: edits / max(1, count) for name, (edits, count) in by_kind.items()}
    return {"cer": tight[0] / max(1, tight[1]), "cer_blanks": total[0] / max(1, total[1]), "kinds": kinds}


def render(seeds: int, fonts: Sequence[str], only: Sequence[str]) -> Iterator[TextImage]:
    for seed, font, spec in itertools.product(range(seeds), fonts, PAGES):
        if not only or spec.name in only:
            yield render_page(dataclasses.replace(spec, font=font), seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, taking turns")
    parser.add_argument("--seeds", type=int, default=2, help="pages of each kind and font")
    parser.add_argument("--font", action="append", default=[""], help="a further TrueType file; repeatable")
    parser.add_argument("--only", default="", help="kinds of pages, separated by commas")
    parser.add_argument("--reference-python", type=Path, help="a Python that has rapidocr-onnxruntime")
    args = parser.parse_args()
    warn_if_busy()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)  # the server, its clients and the reference inherit it
    pages = list(render(args.seeds, args.font, [name for name in args.only.split(",") if name]))
    if not pages:
        raise BenchError(f"no pages are called {args.only!r}; there are {', '.join(spec.name for spec in PAGES)}")
    photographs = real_photographs()
    pictures = [encode_image(page.pixels, "png") for page in pages] + [data for _, data in photographs]
    python = args.reference_python or make_venv(ROOT / ".cache" / "bench" / "rapidocr", PACKAGES)
    models = ROOT / ".cache" / "bench" / "ocr-models"
    os.environ.setdefault("HEADRACE_CACHE", str(ROOT / ".cache" / "headrace"))
    pull_recipe(ModelStore(models), "ocr", force_config=True)
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-ocr-") as folder,
        Process(headrace_command("serve", str(models), "--port", str(port), "--log-level", "warning")) as server,
    ):
        reference = Reference(python, pictures, Path(folder))
        try:
            server.wait_ready(port, "/v2/health/ready", timeout_s=120)
            return compare(args, port, reference, pages, [photograph for photograph, _ in photographs], pictures)
        finally:
            reference.close()


def real_photographs() -> list[tuple[Photograph, bytes]]:
    try:
        folder = ROOT / ".cache" / "photographs"
        return [(photograph, fetch_photograph(photograph, folder, make_progress())) for photograph in PHOTOGRAPHS]
    except Unavailable as error:
        progress(f"no photographs: {error}")
        return []


def photograph_errors(photographs: Sequence[Photograph], found: Sequence[Sequence[tuple[str, Any]]]) -> float:
    """Character error rate over whole photographs, blanks not counted: a line that was missed counts in full."""
    edits = total = 0
    for photograph, lines in zip(photographs, found, strict=True):
        truth = "".join(photograph.lines).replace(" ", "")
        edits += edit_distance(truth, "".join(text for text, _ in lines).replace(" ", ""))
        total += len(truth)
    return edits / total if total else 0.0


def compare(
    args: argparse.Namespace,
    port: int,
    reference: Reference,
    pages: Sequence[TextImage],
    photographs: Sequence[Photograph],
    pictures: Sequence[bytes],
) -> int:
    progress(f"reading {len(pictures)} pictures with each")
    with Client(f"http://127.0.0.1:{port}") as client:
        answers = [client.pipeline("ocr", data, "image/png") for data in pictures]
    we_read = [[(line["text"], line["box"]) for line in answer["lines"]] for answer in answers]
    reference.rate(-1, 1, 0.1)
    they_read = reference.ask(read=True)
    ours, theirs = error_rates(pages, we_read[: len(pages)]), error_rates(pages, they_read[: len(pages)])

    rates: dict[tuple[int, int], list[float]] = {}
    settings = [(-1, CLIENTS), *itertools.product((1, 2), (1, 2, CLIENTS))]
    for threads, clients in settings:
        rates[threads, clients] = [reference.rate(threads, clients, args.seconds)]
        progress(
            f"reference, {threads} threads a model, {clients} clients: {rates[threads, clients][0]:.2f} pictures/s"
        )
    best = max(rates, key=lambda setting: rates[setting][0])
    rates[best].clear()
    own: list[float] = []
    for number in range(args.rounds):
        own.append(our_rate(port, pictures, CLIENTS, args.seconds))
        rates[best].append(reference.rate(*best, args.seconds))
        rates[-1, CLIENTS].append(reference.rate(-1, CLIENTS, args.seconds))
        progress(f"round {number + 1}: ours {own[-1]:.2f}, reference {rates[best][-1]:.2f} pictures/s")
    summary = {
        "bench": "ocr",
        "ocr_ratio": median(own) / median(rates[best]),
        "ocr_ratio_default": median(own) / median(rates[-1, CLIENTS]),
        "ours_per_s": median(own),
        "reference_per_s": median(rates[best]),
        "reference_default_per_s": median(rates[-1, CLIENTS]),
        "reference_best": {"threads": best[0], "clients": best[1]},
        "cer_ours": ours["cer"],
        "cer_reference": theirs["cer"],
        "cer_blanks_ours": ours["cer_blanks"],
        "cer_blanks_reference": theirs["cer_blanks"],
        "kinds": {name: [ours["kinds"][name], theirs["kinds"][name]] for name in ours["kinds"]},
        "cer_photographs_ours": photograph_errors(photographs, we_read[len(pages) :]),
        "cer_photographs_reference": photograph_errors(photographs, they_read[len(pages) :]),
        "pages": len(pages),
        "photographs": len(photographs),
        "clients": CLIENTS,
        "machine": machine(),
    }
    if not args.json:
        rows = [
            ["ours", f"{summary['ours_per_s']:.2f}", f"{ours['cer']:.2%}", f"{ours['cer_blanks']:.2%}"],
            [
                "reference, best",
                f"{summary['reference_per_s']:.2f}",
                f"{theirs['cer']:.2%}",
                f"{theirs['cer_blanks']:.2%}",
            ],
            ["reference, default", f"{summary['reference_default_per_s']:.2f}", "", ""],
        ]
        print(table(["", "pictures/s", "char errors", "with blanks"], rows))
        kinds = [[name, f"{ours['kinds'][name]:.2%}", f"{theirs['kinds'][name]:.2%}"] for name in ours["kinds"]]
        if photographs:
            shown = [summary["cer_photographs_ours"], summary["cer_photographs_reference"]]
            kinds.append(["photographs", *(f"{rate:.2%}" for rate in shown)])
        print(table(["page", "ours", "reference"], kinds))
    print(json.dumps(summary))
    return 0 if ours["cer"] <= theirs["cer"] else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BenchError as error:
        print(f"bench/ocr.py: {error}", file=sys.stderr)
        raise SystemExit(1) from None
