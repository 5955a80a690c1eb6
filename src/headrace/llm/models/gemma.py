"""Gemma 2 (soft-capped scores and logits) and 3 (normalised q and k). Sources: arXiv:2408.00118, 2503.19786.

The embedding is scaled by sqrt(width); each half of a layer is normalised before and after:
x + norm(attention(norm(x))), then x + norm(down(gelu(gate(norm(x))) * up(norm(x)))). Layers with a window alternate
with layers that see everything; Gemma 3 turns the two kinds by thetas of their own. The norms' weights come with
Gemma's "1 +" added, as GGUF files hold them.
"""

from __future__ import annotations

from headrace.llm.config import ModelConfig
from headrace.llm.models.layers import attend, decoder
from headrace.llm.models.rope import local_rope
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["define"]


def define(config: ModelConfig, tensors: Tensors) -> Trace:
    """Write the model down; `config.architecture` is "gemma2" or "gemma3"."""
    local = local_rope(config) if config.architecture == "gemma3" else None
    return decoder(config, tensors, _attention, _feed_forward, scale=config.width**0.5, local=local)


def _attention(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int, turn: Rope) -> Value:
    blk, width, eps = f"blk.{layer}", config.width, config.norm_eps
    q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    rows = {"attn_q": q_width, "attn_k": kv_width, "attn_v": kv_width}
    h = trace.norm(x, tensors.vector(f"{blk}.attn_norm.weight", width), eps)
    qkv = trace.linear(h, [tensors.matrix(f"{blk}.{name}.weight", n, width) for name, n in rows.items()])
    out = attend(trace, config, tensors, qkv, layer, turn, head_norms=config.architecture == "gemma3")
    return trace.add(x, trace.norm(out, tensors.vector(f"{blk}.post_attention_norm.weight", width), eps))


def _feed_forward(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int) -> Value:
    blk, width, ffn, eps = f"blk.{layer}", config.width, config.ffn_width, config.norm_eps
    h = trace.norm(x, tensors.vector(f"{blk}.ffn_norm.weight", width), eps)
    gate = tensors.matrix(f"{blk}.ffn_gate.weight", ffn, width)
    up = tensors.matrix(f"{blk}.ffn_up.weight", ffn, width)
    h = trace.gated(h, gate, up, "gelu_tanh")
    out = trace.linear(h, [tensors.matrix(f"{blk}.ffn_down.weight", width, ffn)])
    return trace.add(x, trace.norm(out, tensors.vector(f"{blk}.post_ffw_norm.weight", width), eps))
