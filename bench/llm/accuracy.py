"""How far from exact floats others are, and what fewer bits of weights cost; `headrace eval kl` measures all the rest.

    python bench/llm/accuracy.py MODEL.gguf --llamacpp [--peer-python PYTHON]
    python bench/llm/accuracy.py MODEL.gguf --weight-bits

With `--llamacpp`: llama.cpp on the same file, tokens and windows. With `--weight-bits` (families like Llama): the same
weights as float16, quantised on load to 8 and to 4 bits. So that they are no easy prey, having been quantised before in
the same blocks, the units of every layer are put in a random order first, which changes no output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import python_of

from _common import BenchError, machine, progress, table
from headrace.cli.eval import ActivationsName, ExecutorName, KvName, Subject, WeightBitsName, opened
from headrace.llm.evaluate import divergence
from headrace.llm.execution import Batch, Output
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.testing.gguf import write_gguf

LLAMACPP = """
import sys, llama_cpp, numpy as np
windows = np.load(sys.argv[2])
model = llama_cpp.Llama(sys.argv[1], n_ctx=max(map(len, windows.values())), logits_all=True, verbose=False, n_threads=2)
for window in windows.values():
    model.reset()
    model.eval(window.tolist())
    sys.stdout.buffer.write(model.scores[: len(window)].data)
"""


class Told:
    """Stands in for an executor: logits that another process writes, window after window, in the order asked for."""

    max_tokens, n_pages, page_bytes, width = 1 << 16, 1 << 20, 0, 0

    def __init__(self, process: subprocess.Popen[bytes], vocab_size: int) -> None:
        self._process, self.vocab_size = process, vocab_size

    def step(self, batch: Batch) -> Output:
        raw = self._process.stdout.read(len(batch.tokens) * self.vocab_size * 4)
        if len(raw) != len(batch.tokens) * self.vocab_size * 4:
            raise BenchError(f"llama.cpp ended with {self._process.wait()}")
        logits = np.frombuffer(raw, np.float32).reshape(-1, self.vocab_size)
        return Output(logits.argmax(axis=1).astype(np.int32), logits)


@contextmanager
def llamacpp(model: str, subject: Subject, vocab_size: int, python: str) -> Iterator[Told]:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/windows.npz", *[window[:-1] for window in subject.windows])  # what is predicted from
        command = [python, "-c", LLAMACPP, model, f"{folder}/windows.npz"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            yield Told(process, vocab_size)


def in_another_order(checkpoint: Checkpoint) -> dict[str, tuple[str, np.ndarray]]:
    """The tensors of a Llama as float16, the units of its layers in another order."""
    key, of = checkpoint.metadata["general.architecture"], checkpoint.metadata
    rng = np.random.default_rng(0)
    width = rng.permutation(of[f"{key}.embedding_length"])
    heads, kv_heads = of[f"{key}.attention.head_count"], of[f"{key}.attention.head_count_kv"]
    within = [rng.permutation(len(width) // heads) for _ in range(kv_heads)]
    values = np.concatenate([h * len(p) + p for h, p in enumerate(within)])
    gathered = np.concatenate([h * len(p) + p for h in range(heads) for p in [within[h * kv_heads // heads]]])
    hidden = rng.permutation(of[f"{key}.feed_forward_length"])
    rows = {"attn_v": values, "attn_output": width, "ffn_gate": hidden, "ffn_up": hidden, "ffn_down": width}
    columns = {"attn_output": gathered, "ffn_down": hidden}
    found = {}
    for name in checkpoint.tensors:
        tensor, what = checkpoint.dequantise(name), name.split(".")[-2]
        if tensor.ndim == 1:
            found[name] = ("F32", tensor[width])
        else:
            tensor = tensor[rows[what]] if what in rows else tensor
            found[name] = ("F16", tensor[:, columns.get(what, width)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--llamacpp", action="store_true", help="measure llama.cpp")
    parser.add_argument("--weight-bits", action="store_true", help="measure float weights quantised on load")
    parser.add_argument("--peer-python", default="", help="a Python that has llama-cpp-python, instead of making one")
    parser.add_argument("--tokens", type=int, default=0, help="stop after that many tokens of the text; 0: all")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.llamacpp:
        python = python_of("llamacpp", args.peer_python)
        progress("llama.cpp")
        with opened(args.model, None, None, 1024, args.tokens) as subject:
            exact = subject.reference()
            with llamacpp(args.model, subject, exact.vocab_size, python) as peer:
                found["llama.cpp"] = msgspec.to_builtins(divergence(peer, exact, subject.windows))
    if args.weight_bits:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "floats.gguf"
            with opened(args.model, None, None, 1024, args.tokens) as subject:
                write_gguf(path, dict(subject.checkpoint.metadata), in_another_order(subject.checkpoint))
            with opened(str(path), None, None, 1024, args.tokens) as subject:
                for bits in WeightBitsName:
                    progress(f"{bits} bits")
                    own = subject.executor(ExecutorName.native, KvName.f16, ActivationsName.int12, bits, 0)
                    kl = divergence(own, subject.reference(), subject.windows)
                    found[f"float16 as {bits} bits"] = msgspec.to_builtins(kl)
    if not args.json:
        print(
            table(
                ["", *next(iter(found.values()), {})], [[name, *map(show, kl.values())] for name, kl in found.items()]
            )
        )
    print(json.dumps({"bench": "accuracy", "model": Path(args.model).name, **found, "machine": machine()}))


def show(value: float) -> str:
    return f"{value:.7g}"


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench/llm/accuracy: {error}") from None
