"""Which cached pages go first when room is needed: what is known of the pages nobody uses in, those to evict out.

Every policy is a pure function of that knowledge, so it is simulated and compared without a model (bench/kv.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError

__all__ = ["POLICIES", "IdlePages", "LfuPolicy", "LruPolicy", "Policy", "ScorePolicy", "make_policy"]

Reals: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IdlePages:
    """The m cached pages that no sequence holds; float64[m] each.

    Attributes:
        accesses: How often a sequence found the page or made it. A page holds all layers, so this is the count of
            each of its layers.
        age: Pages handed out since the last access, as a share of all pages: at 1 the whole cache could have been
            replaced since.
        contiguity: Share of the page's neighbours in its text that are cached: 1 within a run, 0.5 at its end.
        depth: Pages before it in its text.
    """

    accesses: Reals
    age: Reals
    contiguity: Reals
    depth: Reals


class Policy(Protocol):
    def decide(self, idle: IdlePages, count: int) -> Ints:
        """Indices of the `count` pages to evict, the first to go first; 0 <= count <= m.

        Among equals the deepest goes first, because a page is of no use without those before it.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScorePolicy:
    """Evicts the lowest score = 0.45 frequency + 0.35 recency + 0.20 contiguity, each from 0 to 1.

    recency = 2^(-age / half_life), frequency = log(1 + a) / log(1 + highest a of an idle page) where a is the number of
    accesses, faded as 2^(-age / (4 half_life)): what was popular long ago makes room in the end. The half-life was
    chosen on the traces of bench/kv.py.

    Attributes:
        half_life: Age at which recency is a half.
    """

    half_life: float = 0.5

    def decide(self, idle: IdlePages, count: int) -> Ints:
        recency = np.exp2(-idle.age / self.half_life)
        frequency = np.log1p(idle.accesses * np.exp2(-idle.age / (4 * self.half_life)))
        frequency /= frequency.max(initial=1e-9)
        score = 0.45 * frequency + 0.35 * recency + 0.20 * idle.contiguity
        return np.lexsort((-idle.depth, score))[:count]


class LruPolicy:
    """Evicts what was used longest ago."""

    def decide(self, idle: IdlePages, count: int) -> Ints:
        return np.lexsort((-idle.depth, -idle.age))[:count]


class LfuPolicy:
    """Evicts what was used least often; among equals what was used longest ago."""

    def decide(self, idle: IdlePages, count: int) -> Ints:
        return np.lexsort((-idle.depth, -idle.age, idle.accesses))[:count]


POLICIES: Mapping[str, Callable[[], Policy]] = {"score": ScorePolicy, "lru": LruPolicy, "lfu": LfuPolicy}


def make_policy(name: str) -> Policy:
    """The policy of that name; raises `ConfigError` naming those there are."""
    if name not in POLICIES:
        raise ConfigError(f"policy: expected one of {sorted(POLICIES)}, got {name!r}")
    return POLICIES[name]()
