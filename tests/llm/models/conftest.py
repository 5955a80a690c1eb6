"""Small models of every family as files, and the two real ones."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import pytest

from headrace.cli._model import model_file
from headrace.errors import Unavailable
from headrace.llm.batches import one_sequence
from headrace.llm.loader import load_model
from headrace.llm.reference import ReferenceExecutor
from headrace.store.pull import pull_recipe
from headrace.store.versions import ModelStore
from headrace.testing.gguf import write_gguf

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def llama_tensors() -> dict[str, tuple[str, Any]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (40, 32), "output_norm.weight": (32,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (32,),
            f"blk.{layer}.attn_q.weight": (32, 32),
            f"blk.{layer}.attn_k.weight": (16, 32),
            f"blk.{layer}.attn_v.weight": (16, 32),
            f"blk.{layer}.attn_output.weight": (32, 32),
            f"blk.{layer}.ffn_norm.weight": (32,),
            f"blk.{layer}.ffn_gate.weight": (48, 32),
            f"blk.{layer}.ffn_up.weight": (48, 32),
            f"blk.{layer}.ffn_down.weight": (32, 48),
        }
    random = np.random.default_rng(1)
    return {name: ("F32", random.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


@pytest.fixture
def llama_file(tmp_path):
    """Writes a small Llama as GGUF: `llama_file({key: value or None}, {tensor: array or None})`, None leaves it out."""

    def write(metadata=None, tensors=None):
        given = {name: ("F32", values) if values is not None else None for name, values in (tensors or {}).items()}
        keys = {key: value for key, value in (LLAMA | (metadata or {})).items() if value is not None}
        held = {name: value for name, value in (llama_tensors() | given).items() if value is not None}
        return write_gguf(tmp_path / "llama.gguf", keys, held)

    return write


@pytest.fixture(scope="session")
def recipe(checkout):
    """The script that makes small random Hugging Face models; it has their weights and the prompt."""
    spec = importlib.util.spec_from_file_location("golden_huggingface", checkout / "tools/golden_huggingface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def goldens(checkout):
    """Config, shapes and the last logits of each of these models, by name."""
    return json.loads((checkout / "tests/golden/data/huggingface.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def logits():
    """The logits of a model file after each token of a prompt."""

    def run(path, tokens, *, context_length=None, rows=None, **options):
        checkpoint, _, trace = load_model(path, context_length)
        executor = ReferenceExecutor(trace, checkpoint, n_pages=64, max_tokens=1024, **options)
        pages = np.arange(-(-len(tokens) // 16), dtype=np.int32)
        found = executor.step(one_sequence(tokens, pages, rows=rows)).logits
        executor.close()
        checkpoint.close()
        return found

    return run


@pytest.fixture(scope="session")
def real_model(checkout):
    """The file of a recipe's language model, kept between runs; only a missing network is a reason to skip."""

    def pull(name):
        store = ModelStore(checkout / ".cache" / "models")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", str(checkout / ".cache" / "headrace"))
            try:
                pull_recipe(store, name, force_config=True)
            except Unavailable as error:
                pytest.skip(f"the model cannot be pulled: {error}")
        return model_file(name, store.root)

    return pull
