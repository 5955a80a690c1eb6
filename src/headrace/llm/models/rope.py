"""Rotary frequencies: in flow a `RopeConfig` and the factors a checkpoint holds, out come the `Rope`s of a trace."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headrace.llm.config import ModelConfig, RopeConfig
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Rope

__all__ = ["local_rope", "rope"]

Frequencies = npt.NDArray[np.float64]


def rope(config: ModelConfig, tensors: Tensors) -> Rope:
    """Rope of layers that see everything, stretched as `config.rope.scaling` says.

    A tensor `rope_freqs.weight` (Llama 3) divides the frequencies.
    """
    r = config.rope
    freqs = _base(r.theta, r.dims)
    if r.scaling == "linear":
        freqs = freqs / r.factor
    elif r.scaling == "llama3":
        freqs = _llama3(freqs, r)
    elif r.scaling == "yarn":
        freqs = _yarn(freqs, r)
    elif r.scaling == "longrope":
        freqs = freqs / _longrope(config, tensors)
    if (divisors := tensors.optional_values("rope_freqs.weight", r.dims // 2)) is not None:
        freqs = freqs / divisors
    return Rope(tuple(freqs.tolist()), r.interleaved, r.scale)


def local_rope(config: ModelConfig) -> Rope:
    """Rope of layers with a window in models that give them a theta of their own; never stretched."""
    r = config.rope
    return Rope(tuple(_base(r.local_theta, r.dims).tolist()), r.interleaved)


def _base(theta: float, dims: int) -> Frequencies:
    return theta ** -(np.arange(0, dims, 2) / dims)


def _llama3(freqs: Frequencies, r: RopeConfig) -> Frequencies:
    """Long waves are stretched by `factor`, short ones kept, those between blended by how often they turn within the
    original context. Source: Llama 3.1 reference code (`apply_scaling`)."""
    turns = r.original_context * freqs / (2 * math.pi)
    keep = np.clip((turns - r.low_freq) / (r.high_freq - r.low_freq), 0, 1)
    return freqs * (keep + (1 - keep) / r.factor)


def _yarn(freqs: Frequencies, r: RopeConfig) -> Frequencies:
    """Pairs that turn more than `beta_fast` times within the original context are kept, fewer than `beta_slow` times
    stretched, blended between. Source: Peng et al. 2023, YaRN, arXiv:2309.00071, section 3.2."""

    def pair(turns: float) -> float:
        return r.dims * math.log(r.original_context / (turns * 2 * math.pi)) / (2 * math.log(r.theta))

    low = max(math.floor(pair(r.beta_fast)), 0)
    high = min(math.ceil(pair(r.beta_slow)), r.dims - 1)
    stretch = np.clip((np.arange(len(freqs)) - low) / max(high - low, 0.001), 0, 1)
    return freqs * (1 - stretch + stretch / r.factor)


def _longrope(config: ModelConfig, tensors: Tensors) -> Frequencies:
    """The divisors for the context in use. Source: Ding et al. 2024, LongRoPE, arXiv:2402.13753."""
    kinds = ("short", "long")
    short, long = (tensors.values(f"rope_factors_{kind}.weight", config.rope.dims // 2) for kind in kinds)
    chosen = long if config.context_length > config.rope.original_context else short
    return chosen.astype(np.float64)
