"""What every engine is asked to do, so that all do the same: prompts, rounds, figures.

A worker (`engine_*.py`) is one process that loads one model, implements `Subject`, and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Protocol

__all__ = ["Subject", "main", "prompts", "resident_mb"]


class Subject(Protocol):
    """An engine with a loaded model. Greedy decoding, end-of-text ignored, no reuse between prompts."""

    def run(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> Sequence[float]:
        """Answer all prompts at once with `n_tokens` each; `time.perf_counter()` of each token of the first answer, as
        it was seen outside the engine."""
        ...


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Token ids that no engine has seen before in this process."""
    rng = random.Random(seed)
    return [[rng.randrange(1000, 20000) for _ in range(length)] for _ in range(count)]


def resident_mb() -> float:
    """Resident memory of this process, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def measure(subject: Subject, prompt: int, gen: int, streams: list[int], stream_prompt: int, rounds: int) -> dict:
    """Medians over rounds. Prefill: prompt tokens over the time to the first token. Decode: tokens after the first over
    the time they took. Streams: `gen` more tokens of every answer, over what answers twice as long take beyond those of
    `gen`, so that the time of the prompts, and in which order they are computed, falls out."""
    seed = 1
    prefill, decode, ttft_ms, gaps = [], [], [], []
    shares: dict[int, list[float]] = {n: [] for n in streams if n > 1}
    subject.run(prompts(1, 64, 0), 8)
    for _ in range(rounds):
        seed += 1
        began = time.perf_counter()
        times = subject.run(prompts(1, prompt, seed), gen)
        ttft_ms.append((times[0] - began) * 1e3)
        prefill.append(prompt / (times[0] - began))
        decode.append((len(times) - 1) / (times[-1] - times[0]))
        gaps += [(b - a) * 1e3 for a, b in pairwise(times)]
        for n in shares:
            seed += 1
            short_s = timed(lambda n=n, seed=seed: subject.run(prompts(n, stream_prompt, seed), gen))
            seed += 1
            long_s = timed(lambda n=n, seed=seed: subject.run(prompts(n, stream_prompt, seed), 2 * gen))
            shares[n].append(n * gen / (long_s - short_s))
    gaps.sort()
    return {
        "prefill_tok_s": round(median(prefill), 1),
        "decode_tok_s": round(median(decode), 1),
        "streams": {"1": round(median(decode), 1), **{str(n): round(median(v), 1) for n, v in shares.items()}},
        "ttft_ms_p50": round(median(ttft_ms), 2),
        "itl_ms_p99": round(gaps[int(len(gaps) * 0.99)], 2),
    }


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(load: Callable[[argparse.Namespace], Subject]) -> None:
    """Parse the worker's command line, load, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=128)
    parser.add_argument("--streams", default="1,4,8,16")
    parser.add_argument("--stream-prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--activations", default="int12")
    args = parser.parse_args()
    args.streams = [int(n) for n in args.streams.split(",")]
    before_mb = resident_mb()
    began = time.perf_counter()
    subject = load(args)
    load_s = time.perf_counter() - began
    rss_mb = resident_mb()
    figures = measure(subject, args.prompt, args.gen, args.streams, args.stream_prompt, args.rounds)
    memory = {"rss_mb": round(rss_mb, 1), "rss_before_load_mb": round(before_mb, 1), "rss_after_run_mb": resident_mb()}
    print(json.dumps({**figures, **memory, "load_s": round(load_s, 3)}))
