"""Decoding at the size of Llama 3 8B with random 4-bit weights, against how fast memory can be read.

    python bench/llm/shapes.py [--layers 32] [--threads 2] [--json]

No such model fits a test machine's network, but its shapes are known; what the weights are does not change the time.
Needs about 6 GB of memory. The figure is bytes of weights over seconds a token, as a share of the read limit that
`native/bench/read.cpp` finds before and after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, BenchError, machine, progress, warn_if_busy
from headrace.llm.batches import one_sequence
from headrace.llm.config import ModelConfig
from headrace.llm.formats.checkpoint import TensorInfo
from headrace.llm.kernels import NativeExecutor, packed_size
from headrace.llm.models import build
from headrace.llm.weights import WeightCache

SHAPE = {"width": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}


class RandomCheckpoint:
    """Random Q4_0 weights of Llama 3 8B's shapes; tensors of one shape share their bytes until they are packed."""

    path = "random"
    files: tuple[str, ...] = ()

    def __init__(self, layers: int) -> None:
        s, self._bytes = SHAPE, {}
        kv_width = s["width"] // s["heads"] * s["kv_heads"]
        self.metadata: Mapping[str, Any] = {
            "general.architecture": "llama",
            "llama.block_count": layers,
            "llama.context_length": 8192,
            "llama.embedding_length": s["width"],
            "llama.feed_forward_length": s["ffn"],
            "llama.attention.head_count": s["heads"],
            "llama.attention.head_count_kv": s["kv_heads"],
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 500000.0,
            "llama.rope.dimension_count": s["width"] // s["heads"],
            "llama.vocab_size": s["vocab"],
        }
        self.tensors: dict[str, TensorInfo] = {}
        for i in range(layers):
            for name, rows, cols in (
                ("attn_q", s["width"], s["width"]),
                ("attn_k", kv_width, s["width"]),
                ("attn_v", kv_width, s["width"]),
                ("attn_output", s["width"], s["width"]),
                ("ffn_gate", s["ffn"], s["width"]),
                ("ffn_up", s["ffn"], s["width"]),
                ("ffn_down", s["width"], s["ffn"]),
            ):
                self._add(f"blk.{i}.{name}.weight", rows, cols)
            for name in ("attn_norm", "ffn_norm"):
                self._add_vector(f"blk.{i}.{name}.weight", s["width"])
        self._add("token_embd.weight", s["vocab"], s["width"])
        self._add("output.weight", s["vocab"], s["width"])
        self._add_vector("output_norm.weight", s["width"])

    def dequantise(self, name: str) -> np.ndarray:
        return np.ones(self.tensors[name].shape, np.float32)

    def close(self) -> None:
        pass

    def _add(self, name: str, rows: int, cols: int) -> None:
        if (rows, cols) not in self._bytes:
            blocks = np.random.default_rng(rows + cols).integers(0, 256, (rows * cols // 32, 18), np.uint8)
            blocks[:, :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
            self._bytes[rows, cols] = blocks.reshape(-1)
        self.tensors[name] = TensorInfo(name, "Q4_0", (rows, cols), self._bytes[rows, cols])

    def _add_vector(self, name: str, size: int) -> None:
        self.tensors[name] = TensorInfo(name, "F32", (size,), np.ones(size, np.float32).view(np.uint8))


def read_limit(threads: int) -> float:
    """GB/s that this machine's memory can be read at."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "read"
        source = ROOT / "native" / "bench" / "read.cpp"
        built = subprocess.run(
            ["c++", "-O3", "-march=native", "-std=c++20", "-pthread", str(source), "-o", str(binary)],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode != 0:
            raise BenchError(f"cannot compile {source}: {built.stderr}")
        return float(subprocess.run([binary, str(threads)], capture_output=True, text=True, check=True).stdout)


def token_seconds(executor: NativeExecutor, tokens: int) -> float:
    """Median seconds of a decoding step at the beginning of a context."""
    pages = np.arange(8, dtype=np.int32)
    times = []
    for position in range(tokens):
        batch = one_sequence([position + 5], pages, position=position, greedy=True)
        began = time.perf_counter()
        executor.step(batch)
        times.append(time.perf_counter() - began)
    return median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warn_if_busy()
    checkpoint = RandomCheckpoint(args.layers)
    trace = build(ModelConfig.from_checkpoint(checkpoint), checkpoint)
    progress(f"packing {packed_size(trace, checkpoint) / 1e9:.1f} GB")
    executor = NativeExecutor(
        trace, checkpoint, n_pages=8, threads=args.threads, max_tokens=8, cache=WeightCache(limit_bytes=0)
    )
    # the embedding is looked up, not read
    table = SHAPE["vocab"] * SHAPE["width"] * 18 // 32
    read_bytes = packed_size(trace, checkpoint) - table
    before = read_limit(args.threads)
    seconds = token_seconds(executor, args.tokens)
    limit = max(before, read_limit(args.threads))
    reached = read_bytes / seconds / 1e9
    line = {
        "tok_s": round(1 / seconds, 2),
        "weights_gb": round(read_bytes / 1e9, 2),
        "read_gb_s": round(reached, 1),
        "limit_gb_s": round(limit, 1),
        "share": round(reached / limit, 3),
        "machine": machine(),
    }
    if not args.json:
        print(f"{line['tok_s']} tokens/s: {reached:.1f} of {limit:.1f} GB/s, {reached / limit:.0%} of the read limit")
    print(json.dumps(line))


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench/llm/shapes: {error}") from None
