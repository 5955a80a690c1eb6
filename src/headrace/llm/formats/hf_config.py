"""The settings of a Hugging Face model under GGUF's keys: the object of a `config.json` in, metadata out.

What a `config.json` leaves out has the value that `transformers` gives it. Old files (`rope_theta`, `rope_scaling`,
`sliding_window_pattern`) and new ones (`rope_parameters`, `layer_types`) are read alike. What changes the numbers and
is not known here is refused, never skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from headrace.errors import LoadFailed

__all__ = ["MODEL_TYPES", "rope_factors", "text_config", "to_metadata"]

MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "llama": "llama",
        "mistral": "llama",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "gemma2": "gemma2",
        "gemma3": "gemma3",
        "gemma3_text": "gemma3",
        "phi3": "phi3",
    }
)
"""`model_type` to GGUF's architecture."""

# Plain renamings: GGUF's key after the architecture, Hugging Face's key.
_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
# What `transformers` takes where a file has nothing; every other setting is always written.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "mistral": {"sliding_window": 4096},
        "qwen3": {"head_dim": 128},
        "gemma2": {"head_dim": 256, "sliding_window": 4096},
        "gemma3": {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "vocab_size": 262_208,
            "sliding_window": 4096,
        },
    }
)
_ACTIVATIONS = {"silu": ("silu", "swish"), "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new")}
_REFUSED = ("quantization_config", "use_bidirectional_attention", "num_local_experts", "num_experts")


def text_config(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The part that describes the language model, with `model_type` one of `MODEL_TYPES`; raises `LoadFailed`."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise LoadFailed(f"{where}: model_type: expected one of {', '.join(MODEL_TYPES)}; got {str(kind)[:100]!r}")
    defaults = _DEFAULTS.get(kind.removesuffix("_text"), {})
    return {"rms_norm_eps": 1e-6, **defaults, **config, **_object(config, "text_config", where), "model_type": kind}


def to_metadata(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """GGUF's keys and values; raises `LoadFailed` naming the setting that cannot be kept."""
    arch = MODEL_TYPES[config["model_type"]]
    for key in _REFUSED:
        if config.get(key):
            raise LoadFailed(f"{where}: {key}: models that set it are not supported, got {str(config[key])[:100]}")
    activation = config.get("hidden_activation", config.get("hidden_act"))
    if arch.startswith("gemma"):
        activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
    expected = _ACTIVATIONS["gelu_tanh" if arch.startswith("gemma") else "silu"]
    if activation not in (None, *expected):
        raise LoadFailed(f"{where}: activation: expected {expected[0]} for {arch}, got {activation!r}")
    values = {key: config.get(name) for key, name in _SIZES.items()}
    values |= {"attention.key_length": config.get("head_dim"), "attention.value_length": config.get("head_dim")}
    values |= _windows(config, arch, where) | _rope(config, arch, where)
    if arch.startswith("gemma"):
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if key in config:
                values[key] = config[key] or 0.0
        values["attention.scale"] = _number(config, "query_pre_attn_scalar", where, 256) ** -0.5
    own = {f"{arch}.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": arch, "headrace.rope.interleaved": False, **own}


def rope_factors(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The divisors of longrope, which GGUF keeps as tensors: name to float32[dims / 2]."""
    rope = _rope_parameters(config, where)[0]
    if _rope_type(rope, config, where) != "longrope":
        return {}
    found = {}
    for kind in ("long", "short"):
        try:
            values = np.asarray(rope.get(f"{kind}_factor"), np.float32)
        except (TypeError, ValueError):
            values = np.empty(0, np.float32)
        if values.ndim != 1 or not values.size:
            raise LoadFailed(f"{where}: {kind}_factor: longrope scaling needs a list of numbers")
        found[f"rope_factors_{kind}.weight"] = values
    return found


def _windows(config: Mapping[str, Any], arch: str, where: str) -> dict[str, Any]:
    """How far back layers see, and which of them."""
    window = config.get("sliding_window")
    is_off = arch.startswith("qwen") and not config.get("use_sliding_window", False)
    if config["model_type"] == "llama" or window is None or is_off:
        return {"attention.sliding_window": 0}
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        known = {"sliding_attention": True, "full_attention": False}
        if unknown := [kind for kind in kinds if not isinstance(kind, str) or kind not in known]:
            raise LoadFailed(f"{where}: layer_types: expected {' or '.join(known)}, got {str(unknown[0])[:100]!r}")
        pattern: Any = [known[kind] for kind in kinds]
    elif arch.startswith("qwen"):
        first = _number(config, "max_window_layers", where, 28)
        pattern = [layer >= first for layer in range(int(_number(config, "num_hidden_layers", where)))]
    elif arch == "gemma3":
        pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    else:
        pattern = None  # every layer, but for Gemma 2 every other: as the architecture has it
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}


def _rope_parameters(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The parameters of layers that see everything, and of layers with a window where these have their own."""
    given, scaling = (_object(config, name, where) for name in ("rope_parameters", "rope_scaling"))
    if "full_attention" in given or "sliding_attention" in given:
        return {**_object(given, "full_attention", where), **scaling}, _object(given, "sliding_attention", where)
    return {**given, **scaling}, {}


def _rope_type(rope: Mapping[str, Any], config: Mapping[str, Any], where: str) -> str:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "su" or (kind == "yarn" and config["model_type"] == "phi3"):
        kind = "longrope"  # as early Phi-3 files called it
    if kind not in ("default", "linear", "llama3", "longrope", "yarn"):
        expected = "default, linear, llama3, longrope or yarn"
        raise LoadFailed(f"{where}: rope scaling: expected the type {expected}; got {kind!r}")
    return str(kind)


def _rope(config: Mapping[str, Any], arch: str, where: str) -> dict[str, Any]:
    rope, local = _rope_parameters(config, where)
    kind = _rope_type(rope, config, where)
    theta = 1e6 if arch == "gemma3" else 1e4
    found: dict[str, Any] = {
        "rope.freq_base": rope.get("rope_theta", config.get("rope_theta", theta)),
        "rope.scaling.type": "none" if kind == "default" else kind,
    }
    if arch == "gemma3":
        found["rope.freq_base_swa"] = local.get("rope_theta", config.get("rope_local_base_freq", 1e4))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share is not None:
        share = _number({"partial_rotary_factor": share}, "partial_rotary_factor", where)
        width, heads = (_number(config, name, where) for name in ("hidden_size", "num_attention_heads"))
        dims = width // heads if config.get("head_dim") is None else _number(config, "head_dim", where)
        found["rope.dimension_count"] = int(dims * share)
    if kind == "default":
        return found
    original = config.get("original_max_position_embeddings", rope.get("original_max_position_embeddings"))
    found["rope.scaling.original_context_length"] = original
    if kind != "longrope":
        found["rope.scaling.factor"] = _number(rope, "factor", where)
    for name in ("low_freq_factor", "high_freq_factor"):
        if kind == "llama3":
            found[f"rope.scaling.{name}"] = _number(rope, name, where)
    for name in ("beta_fast", "beta_slow"):
        if kind == "yarn":
            found[f"rope.scaling.yarn_{name}"] = rope.get(name)
    if kind in ("yarn", "longrope"):
        found["rope.scaling.attn_factor"] = _attention_factor(rope, kind, original, where)
    return found


def _attention_factor(rope: Mapping[str, Any], kind: str, original: Any, where: str) -> float | None:
    """What is stated, as GGUF has it: for yarn relative to 0.1 ln(factor) + 1. None where the formula is to be used."""
    for name in ("mscale", "mscale_all_dim"):
        if rope.get(name):
            raise LoadFailed(f"{where}: rope scaling: {name} is not supported, got {rope[name]!r}")
    if rope.get("truncate", True) is not True:
        raise LoadFailed(f"{where}: rope scaling: truncate: expected true, got {rope['truncate']!r}")
    if rope.get("attention_factor") is not None:
        stated = _number(rope, "attention_factor", where)
        return stated / (1 + 0.1 * math.log(max(_number(rope, "factor", where), 1.0))) if kind == "yarn" else stated
    if kind == "longrope" and rope.get("factor") is not None and isinstance(original, int) and original > 1:
        factor = _number(rope, "factor", where)
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return None


def _object(values: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """The object under `name`, an empty one where there is none."""
    found = values.get(name)
    if found is not None and not isinstance(found, dict):
        raise LoadFailed(f"{where}: {name}: expected an object, got {str(found)[:100]}")
    return found or {}


def _number(values: Mapping[str, Any], name: str, where: str, default: float | None = None) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise LoadFailed(f"{where}: {name}: expected a positive number, got {value!r}")
    return value
