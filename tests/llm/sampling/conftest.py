"""An independent sampler in NumPy float64: it sorts, and knows nothing of blocks or selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.llm.params import SamplingParams


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10, from the formulas of Salmon et al. 2011."""
    c, k, word = list(counter), list(key), 2**32
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b // word ^ c[1] ^ k[0], b % word, a // word ^ c[3] ^ k[1], a % word]
        k = [(k[0] + 0x9E3779B9) % word, (k[1] + 0xBB67AE85) % word]
    return c


def uniform(seed: int, position: int, index: int) -> float:
    seed %= 2**64
    c = philox([position % 2**32, position >> 32, index, 0], [seed % 2**32, seed >> 32])
    return (c[0] << 21 | c[1] >> 11) / 2**53


def edited(
    row: np.ndarray, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], allowed: np.ndarray | None
) -> np.ndarray:
    x = row.astype(np.float64)
    for token, bias in params.logit_bias.items():
        x[token] = -np.inf if bias <= -100 else x[token] + min(bias, 100.0)
    for token in {*prompt, *answer}:
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        count = list(answer).count(token)
        x[token] -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
    if allowed is not None:
        x[~allowed] = -np.inf
    forced = [token for token, bias in params.logit_bias.items() if bias >= 100 and x[token] > -np.inf]
    if forced:
        others = np.ones(len(x), bool)
        others[forced] = False
        x[others] = -np.inf
    return x


def _fewest(order: np.ndarray, p: np.ndarray, mass: float) -> np.ndarray:
    """The shortest beginning of `order` whose probabilities reach `mass` of them all."""
    total = np.cumsum(p[order])
    return order[: int(np.searchsorted(total, mass * p.sum() * (1 - 1e-12))) + 1]


def distribution(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    """float64[vocab]: what each token is drawn with, after all filters; `x` is already edited."""
    if params.temperature == 0:
        return np.eye(len(x))[int(np.argmax(x))]
    with np.errstate(over="ignore"):
        scaled = (x - x.max()) / params.temperature
    weights = np.exp(scaled)
    by_likelihood = np.lexsort((np.arange(len(x)), -x))
    kept = by_likelihood[: params.top_k] if params.top_k else by_likelihood
    kept = kept[weights[kept] > 0]
    if params.top_p < 1:
        kept = _fewest(kept, weights, params.top_p * weights[kept].sum() / weights.sum())
    kept = kept[weights[kept] >= params.min_p * (1 - 1e-12)]
    if params.typical_p < 1:
        p = weights[kept] / weights[kept].sum()
        surprise = -np.log(p)
        order = np.lexsort((kept, np.abs(surprise - (p * surprise).sum())))
        kept = kept[_fewest(order, p, params.typical_p)]
    result = np.zeros(len(x))
    result[kept] = weights[kept]
    return result / result.sum()


class Reference(NamedTuple):
    philox: Callable[..., list[int]]
    uniform: Callable[[int, int, int], float]
    edited: Callable[..., np.ndarray]
    distribution: Callable[..., np.ndarray]


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(philox, uniform, edited, distribution)


@pytest.fixture(scope="session")
def make_params() -> Callable[[Mapping[str, Any]], SamplingParams]:
    """Parameters that have passed `check`."""

    def make(**given: Any) -> SamplingParams:
        params = SamplingParams(**given)
        params.check(10**6)
        return params

    return make
