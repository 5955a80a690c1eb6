"""The oracle: in flow a trace and its checkpoint, out come the numbers every other executor is held against.

NumPy over dequantised weights, in float64 unless told otherwise; written to be plainly right, not fast. It can also
play what a native executor gives away on purpose (activations rounded to int8 blocks, keys and values stored small),
so that the cost of each is known on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.llm.batches import check_batch, each_token
from headrace.llm.execution import PAGE_TOKENS, Batch, Output
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.llm.trace import (
    Activation,
    Add,
    Attention,
    Embed,
    Gated,
    Linear,
    Logits,
    Norm,
    Op,
    Rope,
    Trace,
    Value,
    Weight,
)

__all__ = ["KvStore", "ReferenceExecutor", "round_int8"]

Reals: TypeAlias = npt.NDArray[Any]
KvStore: TypeAlias = Literal["exact", "float16", "int8"]

BLOCK = 32
"""Activations that share one int8 scale."""


def round_int8(x: Reals, block: int) -> Reals:
    """`x` after a round trip through int8 with one scale for every `block` numbers of its last axis.

    scale = max|x| / 127, rounded half to even. A last block that is not full is a block of its own.
    """
    pad = -x.shape[-1] % block
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    steps = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    rounded: Reals = (steps * scale).reshape(padded.shape)[..., : x.shape[-1]]
    return rounded.astype(x.dtype, copy=False)


class ReferenceExecutor:
    """An `Executor` in NumPy.

    Args:
        trace: What to compute.
        checkpoint: Its weights; dequantised at first use and kept.
        n_pages: Pages of keys and values.
        max_tokens: Most tokens a step may hold.
        dtype: What is computed in: np.float64, or np.float32 for speed.
        simulate_int8: Round the inputs of every matrix to int8 by blocks of 32, as the native kernels do.
        kv: How keys and values are kept: as computed, as float16, or as int8 with one scale a token and head.
        invariant: Run every token alone, so that results have the same bits whatever batch a token comes in.
    """

    def __init__(
        self,
        trace: Trace,
        checkpoint: Checkpoint,
        *,
        n_pages: int = 256,
        max_tokens: int = 512,
        dtype: type[np.floating] = np.float64,
        simulate_int8: bool = False,
        kv: KvStore = "exact",
        invariant: bool = False,
    ) -> None:
        self._ops, self._checkpoint, self._dtype = tuple(trace.ops), checkpoint, dtype
        self._n_pages, self._max_tokens, self._invariant = n_pages, max_tokens, invariant
        self._matrix_input: Callable[[Reals], Reals] = (lambda x: round_int8(x, BLOCK)) if simulate_int8 else _same
        self._stored: Callable[[Reals], Reals] = {
            "exact": _same,
            "float16": lambda x: x.astype(np.float16).astype(dtype),
            "int8": lambda x: round_int8(x, x.shape[-1]),
        }[kv]
        head = self._ops[-1] if self._ops else None
        assert isinstance(head, Logits), "a trace ends in logits"
        self._head = head
        self._weights: dict[str, Reals] = {}
        self._last_use = _last_uses(self._ops)
        self._pages = {
            op.layer: np.zeros((2, n_pages, PAGE_TOKENS, op.n_kv_heads, op.head_dim), dtype)
            for op in self._ops
            if isinstance(op, Attention)
        }

    @property
    def vocab_size(self) -> int:
        return self._head.head.rows

    @property
    def width(self) -> int:
        return self._head.x.width

    @property
    def n_pages(self) -> int:
        return self._n_pages

    @property
    def page_bytes(self) -> int:
        return sum(pages.nbytes // self._n_pages for pages in self._pages.values())

    @property
    def prompts_differ(self) -> bool:
        return False

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    def step(self, batch: Batch) -> Output:
        """See `Executor.step`."""
        logits = self._logits(self._run(batch))
        argmax = np.where(np.isnan(logits).any(axis=1), -1, logits.argmax(axis=1))
        return Output(argmax.astype(np.int32), logits[~batch.greedy].astype(np.float32, copy=False))

    def hidden(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See `Executor.hidden`."""
        return self._run(batch).astype(np.float32, copy=False)

    def copy_page(self, source: int, target: int) -> None:
        """See `Executor.copy_page`."""
        if not (0 <= source < self._n_pages and 0 <= target < self._n_pages):
            raise InvalidInput(f"pages: expected numbers below {self._n_pages}, got {source} and {target}")
        for pages in self._pages.values():
            pages[:, target] = pages[:, source]

    def close(self) -> None:
        """See `Executor.close`."""
        self._weights.clear()
        self._pages.clear()

    def _run(self, batch: Batch) -> Reals:
        """[R, width], the hidden state of `batch.rows`."""
        check_batch(batch, n_pages=self._n_pages, max_tokens=self._max_tokens, vocab_size=self.vocab_size)
        if not self._invariant:
            return self._forward(batch)[batch.rows]
        return np.concatenate([self._forward(one) for one in each_token(batch)])[batch.rows]

    def _forward(self, batch: Batch) -> Reals:
        """[T, width]: replay all but the logits."""
        values: dict[int, Reals] = {}
        for step, op in enumerate(self._ops[:-1]):
            assert not isinstance(op, Logits)
            values[op.out.index] = self._apply(op, values, batch)
            for index in self._last_use.get(step, ()):
                del values[index]
        return values[self._head.x.index]

    def _apply(self, op: Op, values: dict[int, Reals], batch: Batch) -> Reals:
        match op:
            case Embed():
                return self._embed(op, batch.tokens)
            case Norm():
                return self._norm(values[op.x.index], op.weight, op.eps)
            case Linear():
                return self._linear(values[op.x.index], op)
            case Gated():
                return self._gated(values[op.x.index], op)
            case Attention():
                return self._attention(values[op.qkv.index], op, batch)
            case Add():
                return values[op.x.index] + values[op.y.index]
            case Logits():
                raise AssertionError("logits are the last operation")
            case _:
                assert_never(op)

    def _embed(self, op: Embed, tokens: npt.NDArray[np.int32]) -> Reals:
        out: Reals = self._matrix(op.table)[tokens] * self._dtype(op.scale)
        return out

    def _gated(self, x: Reals, op: Gated) -> Reals:
        x = self._matrix_input(x)
        gate: Reals = x @ self._matrix(op.gate).T
        up: Reals = x @ self._matrix(op.up).T
        return _activate(gate, op.activation) * up

    def _linear(self, x: Reals, op: Linear) -> Reals:
        x = self._matrix_input(x)
        parts = [x @ self._matrix(weight).T for weight in op.weights]
        biases = [self._vector(bias) if bias else self._dtype(0) for bias in op.biases]
        return np.concatenate([part + bias for part, bias in zip(parts, biases, strict=True)], axis=1)

    def _logits(self, x: Reals) -> Reals:
        return _cap(self._matrix_input(x) @ self._matrix(self._head.head).T, self._head.softcap)

    def _norm(self, x: Reals, weight: str, eps: float) -> Reals:
        size: Reals = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self._dtype(eps))
        return x / size * self._vector(weight)

    def _attention(self, qkv: Reals, op: Attention, batch: Batch) -> Reals:
        n_tokens, pages = len(qkv), self._pages[op.layer]
        heads = qkv.reshape(n_tokens, op.n_heads + 2 * op.n_kv_heads, op.head_dim)
        q, k, v = np.split(heads, [op.n_heads, op.n_heads + op.n_kv_heads], axis=1)
        q = self._norm(q, op.q_norm, op.norm_eps) if op.q_norm else q
        k = self._norm(k, op.k_norm, op.norm_eps) if op.k_norm else k
        q, k = _rotate(q, batch.positions, op.rope), _rotate(k, batch.positions, op.rope)
        sequences = np.repeat(np.arange(len(batch.starts) - 1), np.diff(batch.starts))
        page = batch.block_tables[sequences, batch.positions // PAGE_TOKENS]
        pages[:, page, batch.positions % PAGE_TOKENS] = self._stored(np.stack([k, v]))
        out = np.empty_like(q)
        for table, start, end in zip(batch.block_tables, batch.starts, batch.starts[1:], strict=False):
            out[start:end] = _attend(q[start:end], batch.positions[start:end], pages, table, op)
        return out.reshape(n_tokens, -1)

    def _matrix(self, weight: Weight) -> Reals:
        return self._decoded(weight.name)[weight.first : weight.first + weight.rows]

    def _vector(self, name: str) -> Reals:
        return self._decoded(name)

    def _decoded(self, name: str) -> Reals:
        if name not in self._weights:
            self._weights[name] = self._checkpoint.dequantise(name).astype(self._dtype)
        return self._weights[name]


def _attend(
    q: Reals, positions: npt.NDArray[np.int32], pages: Reals, table: npt.NDArray[np.int32], op: Attention
) -> Reals:
    """[n, n_heads, head_dim]: what the tokens of one sequence gather from the pages of `table`, theirs included."""
    first = max(0, int(positions[0]) - op.window + 1) if op.window else 0
    seen = np.arange(first, positions[-1] + 1)
    keys, values = pages[:, table[seen // PAGE_TOKENS], seen % PAGE_TOKENS]  # each [len(seen), n_kv_heads, head_dim]
    age = positions[:, None] - seen
    visible = (age >= 0) & ((age < op.window) if op.window else True)
    grouped = q.reshape(len(q), op.n_kv_heads, -1, op.head_dim)
    scores = np.matmul(grouped.transpose(1, 2, 0, 3), keys.transpose(1, 2, 0)[:, None])  # [kv head, group, n, seen]
    scores = np.where(visible, _cap(scores * q.dtype.type(op.scale), op.softcap), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    gathered: Reals = np.matmul(weights, values.transpose(1, 0, 2)[:, None])
    return gathered.transpose(2, 0, 1, 3).reshape(q.shape)


def _rotate(x: Reals, positions: npt.NDArray[np.int32], rope: Rope) -> Reals:
    """Turn pair i of every head of x[n, heads, head_dim] by position * inv_freq[i]."""
    half = len(rope.inv_freq)
    angles = positions[:, None, None] * np.array(rope.inv_freq)
    cos, sin = ((f(angles) * rope.scale).astype(x.dtype) for f in (np.cos, np.sin))
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if rope.interleaved else (slice(half), slice(half, 2 * half))
    )
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def _activate(x: Reals, activation: Activation) -> Reals:
    """silu(x) = x / (1 + exp(-x)); gelu_tanh is the approximation of Hendrycks & Gimpel 2016, arXiv:1606.08415."""
    if activation == "silu":
        with np.errstate(over="ignore"):  # exp(-x) may be inf; the quotient is then 0, as it should be
            silu: Reals = x / (1 + np.exp(-x))
            return silu
    gelu: Reals = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return gelu


def _cap(x: Reals, softcap: float) -> Reals:
    return x.dtype.type(softcap) * np.tanh(x / x.dtype.type(softcap)) if softcap else x


def _same(x: Reals) -> Reals:
    return x


def _last_uses(ops: tuple[Op, ...]) -> dict[int, list[int]]:
    """For each step the values no later step reads, so that they can be dropped."""
    last: dict[int, int] = {}
    for step, op in enumerate(ops):
        for field in fields(op):
            value = getattr(op, field.name)
            if isinstance(value, Value):
                last[value.index] = step
    dying: dict[int, list[int]] = {}
    for index, step in last.items():
        dying.setdefault(step, []).append(index)
    return dying
