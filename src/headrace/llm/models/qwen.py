"""Qwen 2, 2.5 (biases on q, k and v) and 3 (q and k normalised head by head). Sources: arXiv:2407.10671, 2505.09388.

Otherwise a layer is Llama's: x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x))).
"""

from __future__ import annotations

from headrace.llm.config import ModelConfig
from headrace.llm.models.layers import attend, decoder, feed_forward
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["define"]


def define(config: ModelConfig, tensors: Tensors) -> Trace:
    """Write the model down; `config.architecture` is "qwen2" or "qwen3"."""
    return decoder(config, tensors, _attention, feed_forward)


def _attention(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int, turn: Rope) -> Value:
    blk = f"blk.{layer}"
    q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    rows = {"attn_q": q_width, "attn_k": kv_width, "attn_v": kv_width}
    is_qwen3 = config.architecture == "qwen3"
    bias = tensors.optional if is_qwen3 else tensors.vector
    h = trace.norm(x, tensors.vector(f"{blk}.attn_norm.weight", config.width), config.norm_eps)
    qkv = trace.linear(
        h,
        [tensors.matrix(f"{blk}.{name}.weight", n, config.width) for name, n in rows.items()],
        [bias(f"{blk}.{name}.bias", n) for name, n in rows.items()],
    )
    return trace.add(x, attend(trace, config, tensors, qkv, layer, turn, head_norms=is_qwen3))
