"""The numbers that shape a model: in flow a checkpoint's metadata keys, out comes a checked `ModelConfig`.

Keys are GGUF's, whatever the file format; what a key means is told beside the field that reads it. Two kinds of key
are our own, written by readers of other formats: `headrace.rope.interleaved` (false where the rows of q and k are not
permuted) and `{arch}.rope.scaling.{low_freq_factor,high_freq_factor}` (Llama 3 scaling given as numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np

from headrace.errors import InvalidInput, LoadFailed
from headrace.llm.formats.checkpoint import Checkpoint

__all__ = ["ARCHITECTURES", "ModelConfig", "RopeConfig", "RopeScaling"]

RopeScaling: TypeAlias = Literal["none", "linear", "llama3", "longrope", "yarn"]


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture means by a key its file leaves out.

    `window_pattern` n: of every n layers the last sees everything; 0: every layer has the window; 1: none has.
    `wide_at` is the depth of the one size that scales queries by the width of a head's share of the hidden state.
    """

    interleaved: bool = False
    window: int = 0
    window_pattern: int = 0
    local_theta: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    wide_at: int = 0


ARCHITECTURES: Mapping[str, _Family] = {
    "llama": _Family(interleaved=True),
    "qwen2": _Family(window_pattern=1),
    "qwen3": _Family(window_pattern=1),
    "gemma2": _Family(window=4096, window_pattern=2, attention_softcap=50.0, logit_softcap=30.0, wide_at=46),
    "gemma3": _Family(window_pattern=6, local_theta=10_000.0, wide_at=62),
    "phi3": _Family(),
}
"""Values of `general.architecture` that can be loaded. Mistral, SmolLM and their like are "llama" there."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions turn queries and keys.

    Attributes:
        theta: Base of the frequencies; pair i turns by theta^(-2i / dims) a position.
        local_theta: The same in layers with a window.
        dims: Leading dimensions of a head that turn, even.
        interleaved: Whether neighbours (2i, 2i + 1) make a pair, else (i, i + dims / 2).
        scaling: How a short context was stretched to a long one; never applied in layers with a window of their own
            theta.
        factor: By how much.
        original_context: Positions the model had seen before stretching.
        scale: Multiplies cos and sin.
        low_freq, high_freq: Bounds of the blend for llama3.
        beta_fast, beta_slow: Bounds of the blend for yarn.
    """

    theta: float
    local_theta: float
    dims: int
    interleaved: bool
    scaling: RopeScaling
    factor: float
    original_context: int
    scale: float
    low_freq: float
    high_freq: float
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder.

    Attributes:
        architecture: GGUF's name of the family.
        n_layers, width, ffn_width, n_heads, n_kv_heads, head_dim, vocab_size: Sizes; `width` is the hidden state's.
        context_length: Most positions a sequence may have.
        norm_eps: Added to the mean square in every norm.
        attention_scale: Multiplies q.k.
        attention_softcap, logit_softcap: 0 for none.
        windows: For each layer how many positions back it sees, itself included; 0 for all.
        local_layers: For each layer whether it is of the kind that has a window (even one wider than any sequence).
        rope: How positions enter.
    """

    architecture: str
    n_layers: int
    width: int
    ffn_width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    windows: tuple[int, ...]
    local_layers: tuple[bool, ...]
    rope: RopeConfig

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> ModelConfig:
        """Read and check the metadata. Raises `LoadFailed` naming the key, what was expected and what it holds."""
        keys = _Keys(checkpoint)
        family = ARCHITECTURES[keys.arch]
        n_layers = keys.integer("block_count", high=1024)
        width = keys.integer("embedding_length", high=1 << 20)
        n_heads = keys.integer("attention.head_count", high=4096)
        n_kv_heads = keys.integer("attention.head_count_kv", n_heads, high=n_heads)
        if n_heads % n_kv_heads:
            keys.fail("attention.head_count_kv", f"a divisor of the {n_heads} heads", n_kv_heads)
        head_dim = keys.integer("attention.key_length", width // n_heads, high=4096)
        if keys.integer("attention.value_length", head_dim, high=4096) != head_dim:
            keys.fail(
                "attention.value_length", f"{head_dim}, as attention.key_length", keys.get("attention.value_length")
            )
        if keys.integer("expert_count", 0, low=0):
            keys.fail("expert_count", "0 (mixtures of experts are not supported)", keys.get("expert_count"))
        context_length = keys.integer("context_length", high=1 << 27)
        window = keys.integer("attention.sliding_window", family.window, low=0)
        local = _local_layers(keys, family, n_layers) if window else (False,) * n_layers
        spread = width // n_heads if n_layers == family.wide_at else head_dim
        return cls(
            architecture=keys.arch,
            n_layers=n_layers,
            width=width,
            ffn_width=keys.integer("feed_forward_length", high=1 << 22),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            vocab_size=_vocab_size(keys, checkpoint),
            context_length=context_length,
            norm_eps=keys.number("attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
            attention_scale=keys.number("attention.scale", spread**-0.5, low=1e-6),
            attention_softcap=keys.number("attn_logit_softcapping", family.attention_softcap, low=0.0),
            logit_softcap=keys.number("final_logit_softcapping", family.logit_softcap, low=0.0),
            windows=tuple(window if is_local and window < context_length else 0 for is_local in local),
            local_layers=local,
            rope=_rope(keys, family, checkpoint, head_dim, context_length),
        )

    def with_context(self, length: int) -> ModelConfig:
        """The same model for sequences of at most `length` positions.

        A longrope model turns by its short factors where `length` is within its original context, else by the long
        ones. Raises `InvalidInput` where the model has not that many.
        """
        if not 1 <= length <= self.context_length:
            raise InvalidInput(f"context length: expected 1 to {self.context_length}, got {length}")
        return replace(self, context_length=length)


def _vocab_size(keys: _Keys, checkpoint: Checkpoint) -> int:
    """Rows of the embedding; a tokenizer may know fewer tokens, never more."""
    table = checkpoint.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        what = "it is absent" if table is None else f"its shape is {list(table.shape)}"
        raise LoadFailed(f"{checkpoint.path}: token_embd.weight: expected a matrix [vocabulary, width], but {what}")
    rows = table.shape[0]
    if (stated := keys.integer("vocab_size", rows)) > rows:
        keys.fail("vocab_size", f"at most {rows}, the rows of token_embd.weight", stated)
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens", ())
    if len(tokens) > rows:
        raise LoadFailed(
            f"{checkpoint.path}: tokenizer.ggml.tokens: {len(tokens)} tokens, but token_embd.weight has {rows} rows"
        )
    return rows


def _local_layers(keys: _Keys, family: _Family, n_layers: int) -> tuple[bool, ...]:
    pattern: Any = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, (list, tuple, np.ndarray)):
        if len(pattern) != n_layers:
            keys.fail("attention.sliding_window_pattern", f"a number or {n_layers} flags", f"{len(pattern)} flags")
        return tuple(bool(flag) for flag in pattern)
    n = keys.integer("attention.sliding_window_pattern", family.window_pattern, low=0)
    return tuple(n == 0 or (layer + 1) % n != 0 for layer in range(n_layers))


def _rope(keys: _Keys, family: _Family, checkpoint: Checkpoint, head_dim: int, context_length: int) -> RopeConfig:
    theta = keys.number("rope.freq_base", 10_000.0, low=1.0, high=1e12)
    dims = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if dims % 2:
        keys.fail("rope.dimension_count", "an even number", dims)
    scaling = keys.choice("rope.scaling.type", get_args(RopeScaling), "linear")
    if "rope_factors_long.weight" in checkpoint.tensors:
        scaling = "longrope"
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0, low=1e-3), low=1e-3)
    original = keys.integer("rope.scaling.original_context_length", context_length, low=2)
    return RopeConfig(
        theta=theta,
        local_theta=keys.number("rope.freq_base_swa", family.local_theta or theta, low=1.0, high=1e12),
        dims=dims,
        interleaved=keys.flag("headrace.rope.interleaved", family.interleaved),
        scaling=scaling,
        factor=factor,
        original_context=original,
        scale=_rope_scale(keys, scaling, factor, context_length / original, original),
        low_freq=keys.number("rope.scaling.low_freq_factor", 1.0, low=1e-3),
        high_freq=keys.number("rope.scaling.high_freq_factor", 4.0, low=1e-3),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, low=1e-3),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, low=1e-3),
    )


def _rope_scale(keys: _Keys, scaling: RopeScaling, factor: float, ratio: float, original: int) -> float:
    """Stretching flattens the attention; cos and sin grow to undo that.

    Sources: Peng et al. 2023, arXiv:2309.00071, equation 22; Ding et al. 2024, arXiv:2402.13753, section 3.2.
    """
    stated = keys.number("rope.scaling.attn_factor", 0.0, low=0.0)
    if scaling == "yarn":
        return (stated or 1.0) * (1 + 0.1 * math.log(max(factor, 1.0)))
    if scaling == "longrope" and not stated and ratio > 1:
        return math.sqrt(1 + math.log(ratio) / math.log(original))
    return stated or 1.0


class _Keys:
    """Reads `{arch}.{key}`, of a type and within bounds. A key with no default must be there."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._path, self._metadata = checkpoint.path, checkpoint.metadata
        self.arch = str(self._metadata.get("general.architecture", ""))
        if self.arch not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            raise LoadFailed(f"{self._path}: general.architecture: expected one of {known}; got {self.arch!r}")

    def get(self, key: str) -> Any:
        return self._metadata.get(self._full(key))

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        raise LoadFailed(f"{self._path}: {self._full(key)}: expected {expected}, got {got!r}")

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1) -> int:
        value: Any = self.get(key)
        if isinstance(value, (list, tuple, np.ndarray)) and len(value) and all(one == value[0] for one in value):
            value = value[0]  # one number a layer, all equal
        value = default if value is None else value
        is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not is_integer or not low <= value <= high:
            self.fail(key, f"a whole number from {low} to {high}", value)
        return int(value)

    def number(self, key: str, default: float | None = None, *, low: float, high: float = 1e6) -> float:
        value: Any = self.get(key)
        value = default if value is None else value
        is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            self.fail(key, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, (bool, np.bool_)):
            self.fail(key, "true or false", value)
        return default if value is None else bool(value)

    def choice(self, key: str, choices: tuple[RopeScaling, ...], default: RopeScaling) -> RopeScaling:
        value = self.get(key)
        for choice in choices:
            if value == choice:
                return choice
        if value is not None:
            self.fail(key, f"one of {', '.join(choices)}", value)
        return default

    def _full(self, key: str) -> str:
        return key if key.startswith("headrace.") else f"{self.arch}.{key}"
