"""What the families share: the way through a decoder, attention over its heads, and the gated half of a layer.

Biases that a file has on output projections are applied, whatever the family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.llm.config import ModelConfig
from headrace.llm.models.rope import rope
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["AttentionHalf", "FeedForwardHalf", "attend", "decoder", "feed_forward"]

AttentionHalf: TypeAlias = Callable[[Trace, ModelConfig, Tensors, Value, int, Rope], Value]
FeedForwardHalf: TypeAlias = Callable[[Trace, ModelConfig, Tensors, Value, int], Value]
"""The first and second half of layer i: the stream of hidden states in, the same with what the half adds out."""


def decoder(
    config: ModelConfig,
    tensors: Tensors,
    attention: AttentionHalf,
    feed_forward: FeedForwardHalf,
    *,
    scale: float = 1.0,
    local: Rope | None = None,
) -> Trace:
    """Embedding, times `scale`, layers, norm, logits. `local` turns the layers with a window, where they differ."""
    trace = Trace()
    turn = rope(config, tensors)
    x = trace.embed(tensors.matrix("token_embd.weight", config.vocab_size, config.width), scale)
    for layer, is_local in enumerate(config.local_layers):
        x = attention(trace, config, tensors, x, layer, local if is_local and local else turn)
        x = feed_forward(trace, config, tensors, x, layer)
    x = trace.norm(x, tensors.vector("output_norm.weight", config.width), config.norm_eps)
    trace.logits(x, tensors.head(), config.logit_softcap)
    return trace


def attend(
    trace: Trace,
    config: ModelConfig,
    tensors: Tensors,
    qkv: Value,
    layer: int,
    turn: Rope,
    *,
    head_norms: bool = False,
) -> Value:
    """output(attention(qkv)), q and k normalised head by head with `head_norms`."""
    blk, width = f"blk.{layer}", config.width
    heads = trace.attention(
        qkv,
        layer=layer,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        rope=turn,
        q_norm=tensors.vector(f"{blk}.attn_q_norm.weight", config.head_dim) if head_norms else "",
        k_norm=tensors.vector(f"{blk}.attn_k_norm.weight", config.head_dim) if head_norms else "",
        norm_eps=config.norm_eps,
        window=config.windows[layer],
        softcap=config.attention_softcap,
    )
    output = tensors.matrix(f"{blk}.attn_output.weight", width, heads.width)
    return trace.linear(heads, [output], [tensors.optional(f"{blk}.attn_output.bias", width)])


def feed_forward(
    trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int, *, fused: bool = False
) -> Value:
    """x + down(silu(gate(norm(x))) * up(norm(x))); with `fused`, gate and up lie in one matrix."""
    blk, width, ffn = f"blk.{layer}", config.width, config.ffn_width
    h = trace.norm(x, tensors.vector(f"{blk}.ffn_norm.weight", width), config.norm_eps)
    if fused:
        gate, up = tensors.split(f"{blk}.ffn_up.weight", [ffn, ffn], width)
    else:
        gate, up = (tensors.matrix(f"{blk}.{name}.weight", ffn, width) for name in ("ffn_gate", "ffn_up"))
    h = trace.gated(h, gate, up, "silu")
    down = tensors.matrix(f"{blk}.ffn_down.weight", width, ffn)
    return trace.add(x, trace.linear(h, [down], [tensors.optional(f"{blk}.ffn_down.bias", width)]))
