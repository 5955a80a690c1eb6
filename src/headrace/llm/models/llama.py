"""Llama and those built like it: Llama 2 and 3, Mistral (with its window), SmolLM. Source: arXiv:2302.13971.

A layer is two residual steps: x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x))).
"""

from __future__ import annotations

from headrace.llm.config import ModelConfig
from headrace.llm.models.layers import attend, decoder, feed_forward
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["define"]


def define(config: ModelConfig, tensors: Tensors) -> Trace:
    """Write the model down. Files with biases on the projections have them applied."""
    return decoder(config, tensors, _attention, feed_forward)


def _attention(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int, turn: Rope) -> Value:
    blk = f"blk.{layer}"
    q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    rows = {"attn_q": q_width, "attn_k": kv_width, "attn_v": kv_width}
    h = trace.norm(x, tensors.vector(f"{blk}.attn_norm.weight", config.width), config.norm_eps)
    qkv = trace.linear(
        h,
        [tensors.matrix(f"{blk}.{name}.weight", n, config.width) for name, n in rows.items()],
        [tensors.optional(f"{blk}.{name}.bias", n) for name, n in rows.items()],
    )
    return trace.add(x, attend(trace, config, tensors, qkv, layer, turn))
