"""The policy of an actor and a critic: a spec in, one flat float32 vector of parameters and its named views out; with
observations in, actions and values out.

Native code, torch twins and learners share that vector. In order: the actor's layers (weight[out][in], then bias[out],
as torch's `Linear` keeps them), log_std[n] for a Gaussian head, then the critic's layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import InvalidInput
from headrace.rl.spec import Box, Discrete, EnvSpec

__all__ = [
    "Categorical",
    "Decision",
    "Floats",
    "Gaussian",
    "Head",
    "MlpSpec",
    "Policy",
    "Weights",
    "initial",
    "mlp_for",
    "n_parameters",
    "native_arguments",
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
        """Of the actor's last layer."""
        return sum(self.sizes)

    @property
    def n_actions(self) -> int:
        """Numbers in one action."""
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of actions."""
        return np.dtype(np.int32)


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

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)


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


def mlp_for(env: EnvSpec, hidden: tuple[int, ...] = (64, 64), activation: Literal["tanh", "relu"] = "tanh") -> MlpSpec:
    """The MLP that fits an environment's observations and actions."""
    space = env.action
    head: Head
    if isinstance(space, Box):
        head = Gaussian(space.size)
    else:
        head = Categorical((space.n,) if isinstance(space, Discrete) else space.nvec)
    return MlpSpec(env.obs_size, hidden, activation, head)


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


class Decision(NamedTuple):
    """What a policy makes of n observations: actions int32[n][k] or float32[n][k], and float32[n] each of their
    log-probabilities and of values."""

    actions: npt.NDArray[Any]
    log_probs: Floats
    values: Floats


class Policy:
    """The native network of a spec; holds no parameters. Thread-safe.

    Every row is computed for itself, with the same bits on every instruction set and in whatever batch. `isa` picks
    one, e.g. "avx2"; default: `$HEADRACE_ISA`, else the best there is (`ConfigError` for one that is not).
    """

    def __init__(self, spec: MlpSpec, *, isa: str = "") -> None:
        self.spec = spec
        self._native = _native.MlpPolicy(*native_arguments(spec), isa)

    def forward(self, parameters: Floats, observations: Floats) -> tuple[Floats, Floats]:
        """Logits (means, for a Gaussian head) float32[n][n_outputs] and values float32[n] of `observations`
        float32[n][obs_size].

        Raises `InvalidInput` for another shape, dtype or layout.
        """
        rows = self._rows(parameters, observations)
        logits, values = np.empty((rows, self.spec.head.n_outputs), np.float32), np.empty(rows, np.float32)
        self._native.forward(parameters, observations, logits, values)
        return logits, values

    def act(
        self,
        parameters: Floats,
        observations: Floats,
        *,
        greedy: bool = False,
        seed: int = 0,
        first_env: int = 0,
        step: int = 0,
    ) -> Decision:
        """Draw an action for each row of `observations` (float32[n][obs_size], normalised).

        Row i is drawn with the random numbers of (`seed`, `first_env` + i, `step`), as a `Collector` with that seed
        draws for that environment and step. `greedy`: the most probable action, or the mean.
        """
        rows, head = self._rows(parameters, observations), self.spec.head
        actions = np.empty((rows, head.n_actions), head.dtype)
        log_probs, values = np.empty(rows, np.float32), np.empty(rows, np.float32)
        self._native.act(
            parameters, observations, seed, first_env, step, greedy, actions.view(np.uint8), log_probs, values
        )
        return Decision(actions, log_probs, values)

    def _rows(self, parameters: Floats, observations: Floats) -> int:
        views(self.spec, parameters)
        size, got = self.spec.obs_size, observations
        if got.dtype != np.float32 or got.ndim != 2 or got.shape[1] != size or not got.flags.c_contiguous:
            raise InvalidInput(
                f"observations: expected contiguous float32[n, {size}], got {got.dtype}{list(got.shape)}"
            )
        return len(got)


class Weights:
    """Parameters on their way from a learner to collectors, with a version that counts publications.

    Publish and read at any time from any thread; readers hold nobody up, and see one publication as a whole.
    """

    def __init__(self, flat: Floats) -> None:
        """Starts with a copy of `flat` (float32[n], contiguous) as version 1."""
        self._native = _native.Weights(len(flat))
        self.publish(flat)

    @property
    def version(self) -> int:
        return self._native.version

    def __len__(self) -> int:
        return len(self._native)

    def publish(self, flat: Floats) -> int:
        """Make a copy of `flat` the current parameters; returns their version. `InvalidInput` for another size."""
        return self._native.publish(flat)

    def read(self, out: Floats | None = None) -> tuple[Floats, int]:
        """The current parameters, copied to `out` (default: a new array), and their version."""
        flat = np.empty(len(self), np.float32) if out is None else out
        return flat, self._native.read_into(flat)


def native_arguments(spec: MlpSpec) -> tuple[int, tuple[int, ...], str, bool, tuple[int, ...]]:
    """A spec in the words of the native core: obs_size, hidden, activation, whether Gaussian, sizes of the head."""
    gaussian = isinstance(spec.head, Gaussian)
    sizes = spec.head.sizes if isinstance(spec.head, Categorical) else (spec.head.n,)
    return spec.obs_size, spec.hidden, spec.activation, gaussian, sizes
