"""Language-model engines side by side: Headrace, llama.cpp, OpenVINO GenAI; one model, the same threads, one machine.

    python bench/llm/run.py MODEL.gguf --threads 2 --prompt 512 --gen 128 --streams 1,4,8,16 [--peers llamacpp,openvino]

Each engine runs in a process of its own, alone; rounds alternate between engines, figures are medians. With no peers
the JSON line is Headrace's figures alone. llama.cpp is built from source with AVX-512 but without AMX, whose code path
crashes; that takes some ten minutes the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, BenchError, machine, make_venv, progress, table, warn_if_busy

HERE = Path(__file__).resolve().parent
PEERS = {
    "llamacpp": ["numpy==2.3.5", "llama-cpp-python==0.3.36"],
    "openvino": ["numpy==2.3.5", "openvino-genai==2026.4.1.0"],
}
LLAMA_FLAGS = (
    "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=ON "
    "-DGGML_AVX512_VNNI=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_BF16=ON -DLLAVA_BUILD=OFF"
)
"""GGML_NATIVE=OFF leaves AMX out."""


def python_of(engine: str, given: str) -> str:
    if engine == "headrace":
        return sys.executable
    if given:
        return given
    os.environ.setdefault("CMAKE_ARGS", LLAMA_FLAGS)
    return str(make_venv(ROOT / ".cache" / "bench" / engine, PEERS[engine]))


def measure(engine: str, python: str, args: argparse.Namespace, env: dict[str, str]) -> dict[str, Any]:
    options = ["--threads", str(args.threads), "--prompt", str(args.prompt), "--gen", str(args.gen)]
    options += ["--streams", args.streams, "--stream-prompt", str(args.stream_prompt), "--rounds", "1"]
    if engine == "headrace":
        options += ["--kv-type", args.kv_type, "--activations", args.activations]
    command = [python, str(HERE / f"engine_{engine}.py"), args.model, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    if done.returncode != 0:
        raise BenchError(f"{engine} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of every figure over the rounds."""
    first = rounds[0]
    return {
        key: middle([r[key] for r in rounds]) if isinstance(value, dict) else round(median(r[key] for r in rounds), 3)
        for key, value in first.items()
    }


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    found = {key: ours[key] / theirs[key] for key in ("prefill_tok_s", "decode_tok_s")}
    found |= {f"streams_{n}": ours["streams"][n] / theirs["streams"][n] for n in ours["streams"] if n != "1"}
    return {key: round(value, 2) for key, value in found.items()}


def show(results: dict[str, dict[str, Any]]) -> str:
    streams = list(next(iter(results.values()))["streams"])
    head = ["engine", "prefill tok/s", *(f"{n} streams" for n in streams), "ttft ms", "itl p99 ms", "MB", "load s"]
    keys = ("ttft_ms_p50", "itl_ms_p99", "rss_mb", "load_s")
    rows = [
        [name, f"{r['prefill_tok_s']:.0f}", *(f"{r['streams'][n]:.0f}" for n in streams), *(f"{r[k]:g}" for k in keys)]
        for name, r in results.items()
    ]
    return table(head, rows)


def counts(text: str) -> str:
    """The same text, which the engines read, if it is "1,4" or the like."""
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"expected whole numbers like 1,4,8, got {text!r}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--gen", type=int, default=128, help="tokens to generate")
    parser.add_argument("--streams", type=counts, default="1,4,8,16", help="answers at a time")
    parser.add_argument("--stream-prompt", type=int, default=128, help="tokens of each prompt with several streams")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-type", default="f16", choices=["f16", "int8"])
    parser.add_argument("--activations", default="int12", choices=["int8", "int12"])
    parser.add_argument("--isa", default="", help="instruction set of Headrace's kernels")
    parser.add_argument("--peers", default="", help="llamacpp, openvino, or both, comma-separated")
    parser.add_argument("--peer-python", default="", help="a Python that has the peers, instead of making one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engines = ["headrace", *filter(None, args.peers.split(","))]
    try:
        unknown = [name for name in engines[1:] if name not in PEERS]
        if unknown:
            raise BenchError(f"--peers: expected {' or '.join(PEERS)}, got {unknown[0]}")
        pythons = {name: python_of(name, args.peer_python) for name in engines}
        warn_if_busy()
        env = {"HEADRACE_ISA": args.isa} if args.isa else {}
        measure("headrace", pythons["headrace"], args, env)  # packs the weights, if they are not yet
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
        for number in range(args.rounds):
            for name in engines:
                progress(f"round {number + 1}/{args.rounds}: {name}")
                rounds[name].append(measure(name, pythons[name], args, env if name == "headrace" else {}))
    except BenchError as error:
        raise SystemExit(f"bench/llm: {error}") from None
    results = {name: middle(found) for name, found in rounds.items()}
    ours = results["headrace"]
    line: dict[str, Any] = {**ours, "model": Path(args.model).name, "machine": machine()}
    for name in engines[1:]:
        line[name] = {**results[name], "ratio": ratios(ours, results[name])}
    if not args.json:
        print(show(results))
        for name in engines[1:]:
            print(f"Headrace / {name}: " + "  ".join(f"{k} {v}" for k, v in line[name]["ratio"].items()))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
