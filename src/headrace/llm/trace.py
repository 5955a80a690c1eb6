"""What a model computes, as data: a model definition writes a `Trace`, executors replay it.

In: calls of a definition in `headrace.llm.models`, once, at load. Out: a flat list of fused operations over named
weights, in order. `headrace.llm.reference` replays it in NumPy over dequantised weights, `headrace.llm.kernels`
natively over packed ones; both read nothing but this list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace.errors import InvalidInput

__all__ = [
    "Activation",
    "Add",
    "Attention",
    "Embed",
    "Gated",
    "Linear",
    "Logits",
    "Norm",
    "Op",
    "Rope",
    "Trace",
    "Value",
    "Weight",
]

Activation: TypeAlias = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Value:
    """A float32[n_tokens, width] produced by one operation; `index` counts them from 0."""

    index: int
    width: int


@dataclass(frozen=True)
class Weight:
    """A matrix of the checkpoint, [rows, cols], or some of its rows: `first` up to `first + rows`."""

    name: str
    rows: int
    cols: int
    first: int = 0


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: angle of pair i at position p is p * inv_freq[i]; cos and sin are multiplied by `scale`.

    Dimensions beyond 2 * len(inv_freq) pass unchanged. `interleaved` pairs (2i, 2i + 1), else (i, i + half).
    Source: Su et al. 2021, arXiv:2104.09864.
    """

    inv_freq: tuple[float, ...]
    interleaved: bool
    scale: float = 1.0


@dataclass(frozen=True)
class Embed:
    """out = table[token] * scale."""

    out: Value
    table: Weight
    scale: float


@dataclass(frozen=True)
class Norm:
    """out = x / sqrt(mean(x^2) + eps) * weight; `weight` names a vector. Source: Zhang & Sennrich 2019, RMSNorm."""

    out: Value
    x: Value
    weight: str
    eps: float


@dataclass(frozen=True)
class Linear:
    """out = concat(x @ w.T for w in weights) + bias; `biases` holds one vector name a weight, "" for none."""

    out: Value
    x: Value
    weights: tuple[Weight, ...]
    biases: tuple[str, ...]


@dataclass(frozen=True)
class Gated:
    """out = activation(x @ gate.T) * (x @ up.T)."""

    out: Value
    x: Value
    gate: Weight
    up: Weight
    activation: Activation


@dataclass(frozen=True)
class Attention:
    """Causal attention over the pages of `layer`, after writing this step's keys and values there.

    `qkv` holds [q heads | k heads | v heads] side by side. Heads of q and k are normalised first (RMSNorm with the
    vectors named `q_norm`, `k_norm`) where those are given, then rotated. Scores are q.k * scale, then
    softcap * tanh(score / softcap) where `softcap` > 0. A token at position p sees positions j with
    p - window < j <= p, all of them when `window` is 0. Head h of q reads head h * n_kv_heads // n_heads of k and v.
    """

    out: Value
    qkv: Value
    layer: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope
    q_norm: str
    k_norm: str
    norm_eps: float
    window: int
    softcap: float


@dataclass(frozen=True)
class Add:
    """out = x + y."""

    out: Value
    x: Value
    y: Value


@dataclass(frozen=True)
class Logits:
    """logits = x @ head.T, then softcap * tanh(logits / softcap) where `softcap` > 0. The last operation of a trace."""

    x: Value
    head: Weight
    softcap: float


Op: TypeAlias = Embed | Norm | Linear | Gated | Attention | Add | Logits


@dataclass
class Trace:
    """Collects operations; each method appends one and returns its output.

    Shapes are checked here, so that a wrong definition or checkpoint fails at load with the names of the tensors.
    """

    ops: list[Op] = field(default_factory=list)
    _n_values: int = 0

    def embed(self, table: Weight, scale: float = 1.0) -> Value:
        op = Embed(self._value(table.cols), table, scale)
        return self._append(op, op.out)

    def norm(self, x: Value, weight: str, eps: float) -> Value:
        op = Norm(self._value(x.width), x, weight, eps)
        return self._append(op, op.out)

    def linear(self, x: Value, weights: list[Weight], biases: list[str] | None = None) -> Value:
        for weight in weights:
            _fits(x, weight)
        names = tuple(biases) if biases else ("",) * len(weights)
        op = Linear(self._value(sum(w.rows for w in weights)), x, tuple(weights), names)
        return self._append(op, op.out)

    def gated(self, x: Value, gate: Weight, up: Weight, activation: Activation) -> Value:
        _fits(x, gate)
        _fits(x, up)
        if gate.rows != up.rows:
            raise InvalidInput(f"{gate.name} has {gate.rows} rows and {up.name} {up.rows}; they must be equal")
        op = Gated(self._value(gate.rows), x, gate, up, activation)
        return self._append(op, op.out)

    def attention(
        self,
        qkv: Value,
        *,
        layer: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        scale: float,
        rope: Rope,
        q_norm: str = "",
        k_norm: str = "",
        norm_eps: float = 0.0,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Value:
        width = (n_heads + 2 * n_kv_heads) * head_dim
        if qkv.width != width:
            raise InvalidInput(
                f"layer {layer}: queries, keys and values are {qkv.width} wide together; expected {width} for "
                f"{n_heads} + 2 x {n_kv_heads} heads of {head_dim}"
            )
        out = self._value(n_heads * head_dim)
        op = Attention(
            out, qkv, layer, n_heads, n_kv_heads, head_dim, scale, rope, q_norm, k_norm, norm_eps, window, softcap
        )
        return self._append(op, out)

    def add(self, x: Value, y: Value) -> Value:
        if x.width != y.width:
            raise InvalidInput(f"cannot add values {x.width} and {y.width} wide")
        op = Add(self._value(x.width), x, y)
        return self._append(op, op.out)

    def logits(self, x: Value, head: Weight, softcap: float = 0.0) -> None:
        _fits(x, head)
        self.ops.append(Logits(x, head, softcap))

    def _value(self, width: int) -> Value:
        self._n_values += 1
        return Value(self._n_values - 1, width)

    def _append(self, op: Op, out: Value) -> Value:
        self.ops.append(op)
        return out


def _fits(x: Value, weight: Weight) -> None:
    if weight.cols != x.width:
        raise InvalidInput(f"{weight.name} is [{weight.rows}, {weight.cols}]; its input is {x.width} wide")
