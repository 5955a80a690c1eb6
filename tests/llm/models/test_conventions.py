"""The same small models, written the way GGUF files hold them, answer as `transformers` does.

GGUF differs from Hugging Face in the order of q's and k's rows (Llama), and in Llama 3's stretching, which is a tensor.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.llm.formats import open_checkpoint
from headrace.testing.gguf import write_gguf

FAMILIES = [
    "llama",
    "llama, tied, llama3",
    "llama, linear",
    "llama, yarn",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2, tight caps",
    "gemma3, linear",
    "phi3, longrope, long",
]


@pytest.fixture
def convert(tmp_path, recipe, goldens):
    """Write the model of a golden as GGUF."""

    def write(name):
        golden = goldens[name]
        folder = tmp_path / "hf"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(golden["config"]))
        kind = golden["config"]["model_type"]
        save_file(
            {n: recipe.random_weight(n, tuple(s), kind) for n, s in golden["shapes"].items()},
            folder / "model.safetensors",
        )
        source = open_checkpoint(folder)
        metadata = {key: value for key, value in source.metadata.items() if key != "headrace.rope.interleaved"}
        tensors = {tensor: source.dequantise(tensor) for tensor in source.tensors}
        arch = metadata["general.architecture"]
        if arch == "llama":
            for tensor, values in tensors.items():
                if ".attn_q." in tensor or ".attn_k." in tensor:
                    heads = metadata[f"llama.attention.head_count{'_kv' if '.attn_k.' in tensor else ''}"]
                    tensors[tensor] = _interleave(values, heads)
        if metadata.get(f"{arch}.rope.scaling.type") == "llama3":
            tensors["rope_freqs.weight"] = _divisors(metadata, arch)
            metadata = {key: value for key, value in metadata.items() if ".rope.scaling." not in key}
        source.close()
        return write_gguf(tmp_path / "m.gguf", metadata, {n: ("F32", values) for n, values in tensors.items()})

    return write


def _interleave(values, n_heads):
    """Rows (i, i + half) of every head become neighbours (2i, 2i + 1)."""
    halves = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _divisors(metadata, arch):
    """By wavelength: long waves by the factor, short ones by 1, between them the blend of the two frequencies."""
    keys = {key.rsplit(".", 1)[1]: value for key, value in metadata.items() if ".rope." in key}
    dims = metadata[f"{arch}.embedding_length"] // metadata[f"{arch}.attention.head_count"]
    low, high, context = keys["low_freq_factor"], keys["high_freq_factor"], keys["original_context_length"]
    found = []
    for i in range(0, dims, 2):
        wave = 2 * math.pi * keys["freq_base"] ** (i / dims)
        if wave < context / high:
            found.append(1.0)
        elif wave > context / low:
            found.append(keys["factor"])
        else:
            smooth = (context / wave - low) / (high - low)
            found.append(1 / ((1 - smooth) / keys["factor"] + smooth))
    assert min(found) < max(found), "no frequency is stretched"
    return np.array(found, np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_gguf_files_answer_as_transformers(convert, recipe, goldens, logits, name):
    rows = np.arange(len(recipe.TOKENS), dtype=np.int32)[-recipe.LAST :]
    found = logits(convert(name), recipe.TOKENS, rows=rows)
    np.testing.assert_allclose(found, np.array(goldens[name]["logits"]), rtol=0, atol=2e-5)
