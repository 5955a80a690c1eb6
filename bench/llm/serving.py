"""What serving costs, and what one long prompt costs the others.

    python bench/llm/serving.py MODEL.gguf [--streams 16] [--gen 256] [--rounds 3] [--json]

1. `--streams` answers at a time from the engine in this process, all tokens over the whole time; then the same from
   `headrace serve` over HTTP, streamed to as many clients, which are one process of their own on the same cores.
2. Eight answers being written while a prompt of `--long` tokens arrives: the 99th percentile of the time between two
   tokens of one answer, beside the undisturbed one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _load import prompts

from _common import (
    BenchError,
    Process,
    free_port,
    headrace_command,
    machine,
    percentile,
    progress,
    request,
    warn_if_busy,
)
from headrace.llm import Engine, SamplingParams

PROMPT_TOKENS = 64
VICTIMS = 8


def engine_rate(engine: Engine, streams: int, gen: int, seed: int) -> float:
    """Tokens a second of all answers together, read by one event loop."""

    async def read(prompt: list[int]) -> int:
        params = SamplingParams(max_tokens=gen, ignore_eos=True)
        return sum([len(chunk.tokens) async for chunk in engine.generate(prompt, params)])

    async def all_of_them() -> float:
        began = time.perf_counter()
        counts = await asyncio.gather(*(read(prompt) for prompt in prompts(streams, PROMPT_TOKENS, seed)))
        return sum(counts) / (time.perf_counter() - began)

    return asyncio.run(all_of_them())


async def http_answer(port: int, model: str, prompt: list[int], gen: int) -> int:
    """One streamed completion over a plain socket, read to its end; the tokens that its usage counts."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": gen,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\nconnection: close\r\n\r\n".encode() + body)
    tail = b""
    while piece := await reader.read(1 << 16):
        tail = (tail + piece)[-4000:]
    writer.close()
    at = tail.rfind(b'"completion_tokens":')
    if at < 0:
        raise BenchError(f"no usage in the answer: {tail[-500:]!r}")
    return int(tail[at + 20 : at + 30].split(b",")[0])


def client(port: int, model: str, streams: int, gen: int, seed: int) -> float:
    """The body of the client process: tokens a second over all its connections."""

    async def all_of_them() -> float:
        began = time.perf_counter()
        answers = (http_answer(port, model, p, gen) for p in prompts(streams, PROMPT_TOKENS, seed))
        return sum(await asyncio.gather(*answers)) / (time.perf_counter() - began)

    return asyncio.run(all_of_them())


def http_rate(port: int, model: str, streams: int, gen: int, seed: int) -> float:
    options = ["--client", str(port), "--streams", str(streams), "--gen", str(gen), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, __file__, model, *options], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise BenchError(f"the clients failed:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def gaps_ms(engine: Engine, gen: int, seed: int, long_tokens: int) -> list[float]:
    """Milliseconds between tokens of `VICTIMS` answers, while one long prompt is computed if `long_tokens`."""
    params = SamplingParams(max_tokens=gen, ignore_eos=True)
    times: list[list[float]] = [[] for _ in range(VICTIMS)]
    started = threading.Barrier(VICTIMS + 1)

    def read(prompt: list[int], seen: list[float]) -> None:
        for chunk in engine.generate(prompt, params):
            if not seen:
                seen.append(time.perf_counter())
                started.wait()
            seen += [time.perf_counter()] * len(chunk.tokens)

    readers = [
        threading.Thread(target=read, args=(prompt, seen))
        for prompt, seen in zip(prompts(VICTIMS, PROMPT_TOKENS, seed), times, strict=True)
    ]
    for reader in readers:
        reader.start()
    started.wait()
    began = time.perf_counter()
    until = None
    if long_tokens:
        for _ in engine.generate(prompts(1, long_tokens, seed + 1)[0], SamplingParams(max_tokens=1, ignore_eos=True)):
            pass
        until = time.perf_counter()
        progress(f"  {long_tokens} tokens took {until - began:.2f} s")
    for reader in readers:
        reader.join()
    return [(b - a) * 1e3 for seen in times for a, b in pairwise(seen) if a > began and (until is None or b <= until)]


def served(model: str, streams: int, gen: int, rounds: int) -> tuple[list[float], list[float]]:
    """Rates of the engine alone and over HTTP, round by round."""
    alone, over_http = [], []
    for number in range(rounds):
        progress(f"round {number + 1}/{rounds}: engine alone")
        with Engine.load(model, max_context=PROMPT_TOKENS + gen + 16, max_batch=max(streams, 16)) as engine:
            engine_rate(engine, streams, 8, 1)
            alone.append(engine_rate(engine, streams, gen, 100 + number))
        progress(f"round {number + 1}/{rounds}: over HTTP")
        port = free_port()
        with Process(headrace_command("serve", model, "--port", str(port))) as server:
            server.wait_ready(port, "/readyz")
            name = json.loads(request(port, "/v1/models")[1])["data"][0]["id"]
            http_rate(port, name, streams, 8, 2)
            over_http.append(http_rate(port, name, streams, gen, 200 + number))
    return alone, over_http


def stalled(model: str, long_tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """p99 of the time between tokens, undisturbed and with the long prompt, round by round."""
    calm, disturbed = [], []
    with Engine.load(model, max_context=long_tokens + 2000) as engine:
        engine_rate(engine, VICTIMS, 8, 1)
        for number in range(rounds):
            progress(f"round {number + 1}/{rounds}: a long prompt among {VICTIMS} answers")
            calm.append(percentile(gaps_ms(engine, 200, 300 + 10 * number, 0), 99))
            disturbed.append(percentile(gaps_ms(engine, 1500, 305 + 10 * number, long_tokens), 99))
    return calm, disturbed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--gen", type=int, default=256)
    parser.add_argument("--long", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.client:
        print(client(args.client, args.model, args.streams, args.gen, args.seed))
        return
    warn_if_busy()
    alone, over_http = served(args.model, args.streams, args.gen, args.rounds)
    calm, disturbed = stalled(args.model, args.long, args.rounds)
    line: dict[str, Any] = {
        "engine_tok_s": round(median(alone), 1),
        "http_tok_s": round(median(over_http), 1),
        "http_share": round(median(b / a for a, b in zip(alone, over_http, strict=True)), 3),
        "itl_ms_p99": round(median(calm), 2),
        "itl_ms_p99_long_prompt": round(median(disturbed), 2),
        "itl_ratio": round(median(b / a for a, b in zip(calm, disturbed, strict=True)), 2),
        "machine": machine(),
    }
    if not args.json:
        print(f"{args.streams} streams: engine {line['engine_tok_s']} tok/s, over HTTP {line['http_tok_s']}"
              f" ({line['http_share']:.0%})")  # fmt: skip
        print(f"p99 between tokens: {line['itl_ms_p99']} ms, with a prompt of {args.long} tokens arriving "
              f"{line['itl_ms_p99_long_prompt']} ms ({line['itl_ratio']}x)")  # fmt: skip
    print(json.dumps(line))


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench/llm/serving: {error}") from None
