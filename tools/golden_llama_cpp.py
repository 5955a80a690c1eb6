"""Writes tests/golden/data/llama_cpp.json: the likeliest next tokens by llama.cpp after parts of the sample text.

Run where llama-cpp-python is installed, with one or more GGUF files by the names the tests know them by:

    python tools/golden_llama_cpp.py smollm2=SmolLM2.gguf gemma3-270m=gemma-3-270m.gguf
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "tests/golden/data/llama_cpp.json"
TEXT = ROOT / "src/headrace/llm/data/varied.txt"

SPANS = ((0, 24), (330, 40), (640, 48), (1300, 48), (1900, 64), (2450, 64), (0, 640))
"""First token of a prompt in the text, and how many; the last is longer than the window of Gemma 3."""

KEPT = 20


def main(models: dict[str, str]) -> None:
    """Compute and write."""
    found = {name: [answer(path, *span) for span in SPANS] for name, path in models.items()}
    TARGET.write_text(json.dumps(found, separators=(",", ":")) + "\n", "utf-8")


def answer(path: str, first: int, count: int) -> dict[str, Any]:
    """A prompt's tokens, and the likeliest next ones with the logarithms of their probabilities."""
    model = llama_cpp.Llama(path, n_ctx=704, n_threads=2, verbose=False, logits_all=False)
    tokens = model.tokenize(TEXT.read_bytes(), add_bos=False, special=False)[first : first + count]
    if model.metadata.get("tokenizer.ggml.add_bos_token") == "true":
        tokens = [model.token_bos(), *tokens]
    model.eval(tokens)
    pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    logits = np.ctypeslib.as_array(pointer, (model.n_vocab(),)).astype(np.float64)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    top = np.argsort(-logprobs)[:KEPT]
    model.close()
    return {"tokens": tokens, "top": top.tolist(), "logprobs": [round(float(logprobs[i]), 5) for i in top]}


if __name__ == "__main__":
    main(dict(pair.split("=", 1) for pair in sys.argv[1:]))
