"""Tensors of a Hugging Face model under GGUF's names: a name in, the other out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["gguf_name"]

_WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"} | {
    "lm_head.weight": "output.weight"
}
_LAYER: Mapping[str, str] = MappingProxyType(
    {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)
# Gemma normalises after each half of a layer too, and calls the norm before the second half by another name.
_GEMMA: Mapping[str, str] = MappingProxyType(
    {
        **_LAYER,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_INNER = re.compile(r"(?:model\.)?language_model\.(?:model\.)?(.+)")
# Frequencies that follow from the config, and what models that can see do it with.
_LEFT_OUT = re.compile(r".*\.rotary_emb\.inv_freq|(?:model\.)?(?:vision_tower|multi_modal_projector)\..*")


def gguf_name(name: str, architecture: str) -> str:
    """GGUF's name; "" for a tensor that is not needed; the name itself if GGUF has none, for the loader to refuse."""
    if _LEFT_OUT.fullmatch(name):
        return ""
    plain = name
    if inner := _INNER.fullmatch(name):  # the part of a model that can see too
        plain = inner[1] if inner[1].startswith("lm_head.") else f"model.{inner[1]}"
    if plain in _WHOLE:
        return _WHOLE[plain]
    if layer := _IN_LAYER.fullmatch(plain):
        names = _GEMMA if architecture.startswith("gemma") else _LAYER
        if layer[2] in names:
            return f"blk.{int(layer[1])}.{names[layer[2]]}.{layer[3]}"
    return name
