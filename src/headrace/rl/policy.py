"""The policy of an actor and a critic: a spec in, one flat float32 vector of parameters and its named views out.

Native code, torch twins and learners share that vector. In order: the actor's layers (weight[out][in], then bias[out],
as torch's `Linear` keeps them), log_std[n] for a Gaussian head, then the critic's layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput

__all__ = [
    "Categorical",
    "Floats",
    "Gaussian",
    "Head",
    "MlpSpec",
    "initial",
    "n_parameters",
    "views",
]

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Categorical:
    """One softmax for each entry of `sizes`, side by side: (2,) for Discrete(2), (3, 2) for MultiDiscrete((3, 2))."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise InvalidInput(f"Categorical: expected one or more sizes of at least 1, got {self.sizes}")

    @property
    def n_outputs(self) -> int:
        return sum(self.sizes)

    @property
    def n_actions(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """`n` independent normal distributions; their log standard deviations are parameters of their own."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidInput(f"Gaussian: expected at least 1 action, got {self.n}")

    @property
    def n_outputs(self) -> int:
        return self.n

    @property
    def n_actions(self) -> int:
        return self.n


Head: TypeAlias = Categorical | Gaussian


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Separate actor and critic of the same hidden layers. `hidden=()` is a linear policy."""

    obs_size: int
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    head: Head = Categorical((2,))

    def __post_init__(self) -> None:
        if self.obs_size < 1:
            raise InvalidInput(f"MlpSpec: expected obs_size of at least 1, got {self.obs_size}")
        if any(size < 1 for size in self.hidden):
            raise InvalidInput(f"MlpSpec: expected hidden sizes of at least 1, got {self.hidden}")
        if self.activation not in ("tanh", "relu"):
            raise InvalidInput(f"MlpSpec: expected activation 'tanh' or 'relu', got {self.activation!r}")


def _shapes(spec: MlpSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape, in the order of the flat vector."""
    shapes: dict[str, tuple[int, ...]] = {}
    for network, outputs in (("actor", spec.head.n_outputs), ("critic", 1)):
        sizes = (spec.obs_size, *spec.hidden, outputs)
        for layer, (wide_in, wide_out) in enumerate(pairwise(sizes)):
            shapes[f"{network}.{layer}.weight"] = (wide_out, wide_in)
            shapes[f"{network}.{layer}.bias"] = (wide_out,)
        if network == "actor" and isinstance(spec.head, Gaussian):
            shapes["log_std"] = (spec.head.n,)
    return shapes


def n_parameters(spec: MlpSpec) -> int:
    """Length of the flat vector."""
    return sum(math.prod(shape) for shape in _shapes(spec).values())


def views(spec: MlpSpec, flat: Floats) -> dict[str, Floats]:
    """Named views of `flat` (float32[n_parameters], contiguous), no copy: "actor.0.weight" [64, 4], "actor.0.bias" …
    "log_std" (Gaussian heads), "critic.0.weight" … Layers are numbered from 0.

    Raises `InvalidInput` for another length, dtype or layout.
    """
    expected = n_parameters(spec)
    if flat.dtype != np.float32 or flat.shape != (expected,) or not flat.flags.c_contiguous:
        raise InvalidInput(f"parameters: expected contiguous float32[{expected}], got {flat.dtype}{list(flat.shape)}")
    found: dict[str, Floats] = {}
    offset = 0
    for name, shape in _shapes(spec).items():
        size = math.prod(shape)
        found[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    return found


def initial(spec: MlpSpec, seed: int) -> Floats:
    """Fresh parameters: orthogonal weights, gain sqrt 2 (hidden), 0.01 (actor's last), 1 (critic's last); the rest 0.

    Source: Saxe, McClelland & Ganguli 2014; the gains are those of PPO's reference code.
    """
    rng = np.random.default_rng(seed)
    flat = np.zeros(n_parameters(spec), np.float32)
    last = len(spec.hidden)
    gains = {f"actor.{last}.weight": 0.01, f"critic.{last}.weight": 1.0}
    for name, view in views(spec, flat).items():
        if view.ndim == 2:
            view[...] = gains.get(name, math.sqrt(2.0)) * _orthogonal(view.shape, rng)
    return flat


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A matrix whose shorter side's vectors are orthonormal, uniformly distributed."""
    rows, cols = shape
    square = rng.standard_normal((max(rows, cols), min(rows, cols)))
    q, r = np.linalg.qr(square)
    q *= np.sign(np.diag(r))
    return q if rows >= cols else q.T
