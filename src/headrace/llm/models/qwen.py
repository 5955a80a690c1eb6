"""Qwen 2, 2.5 (biases on q, k and v) and 3 (q and k normalised head by head). Sources: arXiv:2407.10671, 2505.09388.

Otherwise a layer is Llama's: x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x))).
"""

from __future__ import annotations

from headrace.llm.config import ModelConfig
from headrace.llm.models.rope import rope
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope, Trace, Value

__all__ = ["define"]


def define(config: ModelConfig, tensors: Tensors) -> Trace:
    """Write the model down; `config.architecture` is "qwen2" or "qwen3"."""
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
    heads = trace.attention(
        qkv,
        layer=layer,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        rope=turn,
        q_norm=tensors.vector(f"{blk}.attn_q_norm.weight", config.head_dim) if is_qwen3 else "",
        k_norm=tensors.vector(f"{blk}.attn_k_norm.weight", config.head_dim) if is_qwen3 else "",
        norm_eps=config.norm_eps,
        window=config.windows[layer],
    )
    out = trace.linear(
        heads,
        [tensors.matrix(f"{blk}.attn_output.weight", config.width, q_width)],
        [tensors.optional(f"{blk}.attn_output.bias", config.width)],
    )
    return trace.add(x, out)


def _feed_forward(trace: Trace, config: ModelConfig, tensors: Tensors, x: Value, layer: int) -> Value:
    blk, width, ffn = f"blk.{layer}", config.width, config.ffn_width
    h = trace.norm(x, tensors.vector(f"{blk}.ffn_norm.weight", width), config.norm_eps)
    gate = tensors.matrix(f"{blk}.ffn_gate.weight", ffn, width)
    up = tensors.matrix(f"{blk}.ffn_up.weight", ffn, width)
    h = trace.gated(h, gate, up, "silu")
    return trace.add(x, trace.linear(h, [tensors.matrix(f"{blk}.ffn_down.weight", width, ffn)]))
