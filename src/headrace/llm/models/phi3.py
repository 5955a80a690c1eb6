"""Phi-3, 3.5 and 4-mini: Llama's layers with q, k, v in one matrix and gate, up in another. Source: arXiv:2404.14219.

Long-context versions turn by longrope's divisors, and some heads turn only in their first dimensions.
"""

from __future__ import annotations

from functools import partial

from headrace.llm.config import ModelConfig
from headrace.llm.models.layers import attend, decoder, feed_forward
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["define"]


def define(config: ModelConfig, tensors: Tensors) -> Trace:
    """Write the model down."""
    return decoder(config, tensors, _attention, partial(feed_forward, fused=True))


def _attention(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int, turn: Rope) -> Value:
    blk, width = f"blk.{layer}", config.width
    qkv_width = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
    h = trace.norm(x, tensors.vector(f"{blk}.attn_norm.weight", width), config.norm_eps)
    qkv = trace.linear(h, [tensors.matrix(f"{blk}.attn_qkv.weight", qkv_width, width)])
    return trace.add(x, attend(trace, config, tensors, qkv, layer, turn))
