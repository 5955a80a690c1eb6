"""Random numbers that depend on where they are drawn, not on what was drawn before: Philox4x32-10.

The stream of an environment is keyed by (seed, environment, episode, step), so that results never depend on how
environments are split over threads. `uniform`, `integers`, `normal` and `chance` are what `reset` and `step` of an
environment call; they run as plain Python and compile into its loop.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["STREAM_WORDS", "chance", "integers", "key_stream", "new_stream", "normal", "philox4x32", "uniform"]

# numba compiles these functions as they are: every constant must be of the type the arithmetic is done in
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ONE = np.uint64(1)
_11 = np.uint64(11)
_ULP = 2.0**-53

STREAM_WORDS = 5
"""uint64 words of a stream: key, (environment, episode), step, draws made, the half of a block kept for the next."""


def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, key: Any) -> Any:
    """Ten rounds of Philox4x32 on the counter (c0, c1, c2, c3), 32 bits each, under a key of 64 bits; all uint64.

    Returns two uint64: words 0 and 1, and words 2 and 3, the lower-numbered word in the lower half.
    """
    k0, k1 = key & _LOW, key >> _32
    for _ in range(10):
        p0, p1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0 | (c1 << _32), c2 | (c3 << _32)


def key_stream(rng: Any, seed: Any, env: Any, episode: Any, step: Any) -> None:
    """Put `rng` at the beginning of the stream of one step (0: the reset) of one episode of one environment."""
    rng[0] = np.uint64(seed)
    rng[1] = ((np.uint64(env) & _LOW) << _32) | (np.uint64(episode) & _LOW)
    rng[2] = np.uint64(step) & _LOW
    rng[3] = np.uint64(0)
    rng[4] = np.uint64(0)


def _next(rng: Any) -> Any:
    """The next 64 random bits."""
    drawn = rng[3]
    rng[3] = drawn + _ONE
    if drawn & _ONE:
        return rng[4]
    first, second = philox4x32(drawn >> _ONE, rng[2], rng[1] & _LOW, rng[1] >> _32, rng[0])
    rng[4] = second
    return first


def uniform(rng: Any, low: float, high: float) -> Any:
    """A float64 in [low, high), 53 random bits."""
    return low + (high - low) * (float(_next(rng) >> _11) * _ULP)


def integers(rng: Any, n: int) -> Any:
    """A whole number in 0 … n - 1, for n below 2**31; unevenness below n / 2**32."""
    return int(((_next(rng) >> _32) * np.uint64(n)) >> _32)


def chance(rng: Any, probability: float) -> Any:
    """True with this probability."""
    return uniform(rng, 0.0, 1.0) < probability


def normal(rng: Any, mean: float, deviation: float) -> Any:
    """A normal float64 by the transform of Box and Muller (1958); takes two draws."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(rng, 0.0, 1.0)))
    return mean + deviation * radius * math.cos(6.283185307179586 * uniform(rng, 0.0, 1.0))


def new_stream(seed: int, env: int = 0, episode: int = 0, step: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The stream of one step as plain Python uses it."""
    rng = np.zeros(STREAM_WORDS, np.uint64)
    key_stream(rng, seed, env, episode, step)
    return rng
