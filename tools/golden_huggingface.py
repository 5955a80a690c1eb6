"""Writes tests/golden/data/huggingface.json: small random models of every family, and what `transformers` computes.

Run where torch and transformers are installed (they are too heavy for the test suite):

    python tools/golden_huggingface.py tests/golden/data/huggingface.json

Weights are not stored: `random_weight` makes the same ones from a tensor's name, here and in the tests.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "num_hidden_layers": 7}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0, 2.1, 2.2, 3.3, 4.4, 5.5],
}
# name -> (class prefix in transformers, settings beside SIZES)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": False}),
    "llama, tied, llama3": (
        "Llama",
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}}
        | {"tie_word_embeddings": True},
    ),
    "llama, linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama, yarn": ("Llama", {"rope_scaling": YARN}),
    "llama, yarn, stated": ("Llama", {"rope_scaling": YARN | {"attention_factor": 1.3, "beta_fast": 16.0}}),
    "mistral": ("Mistral", {"sliding_window": 6}),
    "qwen2": ("Qwen2", {}),
    "qwen2, window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma2, tight caps": ("Gemma2", GEMMA | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.5}),
    "gemma3": ("Gemma3Text", GEMMA),
    "gemma3, linear": ("Gemma3Text", GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "phi3": ("Phi3", {"sliding_window": 9}),
    "phi3, longrope, short": (
        "Phi3",
        {"hidden_size": 64, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64}
        | {"rope_scaling": LONG},
    ),
    "phi3, longrope, long": (
        "Phi3",
        {"hidden_size": 64, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 32}
        | {"rope_scaling": LONG},
    ),
}
TOKENS = [(3 + 7 * i) % 96 for i in range(40)]
LAST = 3
"""Positions whose logits are kept."""


def random_weight(name: str, shape: tuple[int, ...], architecture: str) -> npt.NDArray[np.float32]:
    """The weight that the tensor `name` has in these models."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if "norm" in name:
        return (values * np.float32(0.2) + np.float32(0 if architecture.startswith("gemma") else 1)).astype(np.float32)
    return values * np.float32(0.12 if len(shape) == 2 else 0.1)


def main(path: Path) -> None:
    """Compute and write."""
    import torch
    import transformers

    goldens = {}
    for name, (prefix, settings) in MODELS.items():
        config = getattr(transformers, f"{prefix}Config")(**(SIZES | settings))
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM")(config).eval()
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        if config.tie_word_embeddings:
            shapes.pop("lm_head.weight", None)
        weights = {
            key: torch.from_numpy(random_weight(key, tuple(shape), prefix.lower())) for key, shape in shapes.items()
        }
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS])).logits[0, -LAST:].double().numpy()
        goldens[name] = {
            "config": json.loads(config.to_json_string()),
            "shapes": shapes,
            "logits": [[round(value, 6) for value in row] for row in logits.tolist()],
        }
    path.write_text(json.dumps(goldens, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
