"""What choosing a token costs: microseconds a row on one core, beside the usual way in NumPy.

Without a model the rows are normal noise with a few likely tokens; with one they are its logits after each token of a
text. The peer is what engines write in Python: partition for top-k, a whole sort for top-p, row after row. With a model
the grammar is measured too: building its vocabulary once, starting an answer, and the masks of a small JSON document.

    python bench/sampling.py
    python bench/sampling.py model.gguf --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from _common import median, progress, table
from headrace.llm.engine import Engine
from headrace.llm.grammar import GrammarFactory
from headrace.llm.params import Grammar, SamplingParams
from headrace.llm.sampler import Sampler, sample_rows

KINDS: dict[str, dict[str, Any]] = {
    "top-k 40, top-p 0.95": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "temperature 1": {"temperature": 1.0},
    "typical 0.9": {"temperature": 1.0, "typical_p": 0.9},
    "repetition 1.1, top-k 40": {"temperature": 0.7, "top_k": 40, "repetition_penalty": 1.1},
    "argmax, 5 logprobs": {"logprobs": 5},
}
COLUMNS = {"us": "us a row", "numpy_us": "NumPy"}
TEXT = (
    "The town lies on a river, and its history begins in the ninth century. def area(width, height):\n    return "
    'width * height\n\n{"name": "Ada", "born": 1815, "tags": ["engines"]} She said that she would never'
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
DOCUMENT = '{"name": "Ada Lovelace", "age": 36, "tags": ["mathematics", "engines"]}'


def noise(vocab: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 2.5, (16, vocab)).astype(np.float32)
    rows[:, rng.choice(vocab, 20, replace=False)] += 10
    return rows


def per_row_us(work: Callable[[], object], rows: int, runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e6 / rows)
    return median(times)


def usual(row: np.ndarray, params: SamplingParams, rng: np.random.Generator) -> int:
    """Top-k by partition, top-p by sorting what is left, a draw."""
    x = row / params.temperature
    tokens = np.argpartition(x, -params.top_k)[-params.top_k :] if params.top_k else np.arange(len(x))
    tokens = tokens[np.argsort(-x[tokens])]
    p = np.exp(x[tokens] - x[tokens[0]])
    p /= p.sum()
    kept = int(np.searchsorted(np.cumsum(p), params.top_p)) + 1
    return int(rng.choice(tokens[:kept], p=p[:kept] / p[:kept].sum()))


def rows_of(logits: np.ndarray, runs: int) -> dict[str, dict[str, float]]:
    count, vocab = logits.shape
    rng = np.random.default_rng(0)
    figures = {}
    for name, given in KINDS.items():
        params = SamplingParams(seed=1, **given)
        samplers = [Sampler(params, vocab, range(300), index=i) for i in range(count)]
        figures[name] = {"us": per_row_us(lambda of=samplers: sample_rows(of, logits, range(count)), count, runs)}
        if name.startswith("top-"):
            figures[name]["numpy_us"] = per_row_us(
                lambda by=params: [usual(row, by, rng) for row in logits], count, max(3, runs // 10)
            )
    return figures


def grammar(engine: Engine) -> dict[str, float]:
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    start = time.perf_counter()
    factory = GrammarFactory.of(tokenizer, tokenizer.vocab_size)
    factory.matcher(Grammar("json_object"))
    built = time.perf_counter()
    matcher = factory.matcher(Grammar("json_schema", SCHEMA))
    begun = time.perf_counter()
    masks = []
    for token in tokenizer.encode(DOCUMENT, special=False):
        before = time.perf_counter()
        matcher.mask()
        masks.append((time.perf_counter() - before) * 1e6)
        matcher.accept(token)
    return {
        "vocabulary_ms": (built - start) * 1e3,
        "begin_ms": (begun - built) * 1e3,
        "mask_us": median(masks),
        "mask_us_max": max(masks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model file; without it the rows are noise")
    parser.add_argument("--runs", type=int, default=100, help="the median of so many is shown")
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.model is None:
        for vocab in (49_152, 262_144):
            progress(f"rows of {vocab} tokens")
            result[str(vocab)] = rows_of(noise(vocab), options.runs)
    else:
        with Engine.load(options.model, threads=2) as engine:
            assert engine.tokenizer is not None
            logits = np.ascontiguousarray(engine.logits(engine.tokenizer.encode(TEXT)))
            result[str(logits.shape[1])] = rows_of(logits, options.runs)
            result["grammar"] = grammar(engine)
    if not options.json:
        for title, figures in result.items():
            if title == "grammar":
                print(table((title, ""), [(name, f"{value:.2f}") for name, value in figures.items()]))
            else:
                lines = [
                    (name, *[f"{row[key]:.1f}" if key in row else "" for key in COLUMNS])
                    for name, row in figures.items()
                ]
                print(table((f"{title} tokens", *COLUMNS.values()), lines))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
