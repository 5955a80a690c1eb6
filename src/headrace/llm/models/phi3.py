"""Phi-3, 3.5 and 4-mini: Llama's layers with q, k, v in one matrix and gate, up in another. Source: arXiv:2404.14219.

Long-context versions turn by longrope's divisors, and some heads turn only in their first dimensions.
"""

from __future__ import annotations

from headrace.llm.config import ModelConfig
from headrace.llm.models.rope import rope
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["define"]


def define(config: ModelConfig, tensors: Tensors) -> Trace:
    """Write the model down."""
    trace = Trace()
    turn = rope(config, tensors)
    x = trace.embed(tensors.matrix("token_embd.weight", config.vocab_size, config.width))
    for layer in range(config.n_layers):
        x = _attention(trace, config, tensors, x, layer, turn)
        x = _feed_forward(trace, config, tensors, x, layer)
    x = trace.norm(x, tensors.vector("output_norm.weight", config.width), config.norm_eps)
    trace.logits(x, tensors.head(), config.logit_softcap)
    return trace


def _attention(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int, turn: Rope) -> Value:
    blk, width = f"blk.{layer}", config.width
    q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    h = trace.norm(x, tensors.vector(f"{blk}.attn_norm.weight", width), config.norm_eps)
    qkv = trace.linear(h, [tensors.matrix(f"{blk}.attn_qkv.weight", q_width + 2 * kv_width, width)])
    heads = trace.attention(
        qkv,
        layer=layer,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        rope=turn,
        window=config.windows[layer],
    )
    return trace.add(x, trace.linear(heads, [tensors.matrix(f"{blk}.attn_output.weight", width, q_width)]))


def _feed_forward(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int) -> Value:
    blk, width, ffn = f"blk.{layer}", config.width, config.ffn_width
    h = trace.norm(x, tensors.vector(f"{blk}.ffn_norm.weight", width), config.norm_eps)
    gate, up = tensors.split(f"{blk}.ffn_up.weight", [ffn, ffn], width)
    h = trace.gated(h, gate, up, "silu")
    return trace.add(x, trace.linear(h, [tensors.matrix(f"{blk}.ffn_down.weight", width, ffn)]))
