"""From a trace to what the native program runs: a `Trace` in, the same operations over numbered buffers out.

Norms move into the product or the sum that reads them, sums into the buffer they add to, and buffers are used again
once nothing needs their value. What cannot be expressed so is refused; no definition in `headrace.llm.models` needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import InvalidInput
from headrace.llm.trace import Add, Attention, Embed, Gated, Linear, Logits, Norm, Op, Rope, Trace, Value, Weight

__all__ = ["Program", "Weights", "lower"]


class Program(Protocol):
    """What is lowered to; indices are those its `add_…` returned, -1 means none."""

    def add_buffer(self, width: int) -> int: ...
    def add_rotation(self, inv_freq: list[float], interleaved: bool, scale: float) -> int: ...
    def embed(self, table: int, scale: float, out: int) -> None: ...
    def linear(
        self, x: int, norm: int, eps: float, weights: list[int], biases: list[int], out: int, accumulate: bool
    ) -> None: ...
    def gated(self, x: int, norm: int, eps: float, gate: int, up: int, gelu: bool, out: int) -> None: ...
    def attention(
        self,
        qkv: int,
        out: int,
        layer: int,
        n_heads: int,
        scale: float,
        softcap: float,
        window: int,
        rotation: int,
        q_norm: int,
        k_norm: int,
        eps: float,
    ) -> None: ...
    def add_norm(self, x: int, y: int, norm: int, eps: float) -> None: ...
    def add(self, x: int, y: int) -> None: ...
    def logits(self, x: int, norm: int, eps: float, head: int, softcap: float) -> None: ...


class Weights(Protocol):
    """Where the program's weights are: indices by name, added when first asked for; "" gives -1."""

    def matrix(self, weight: Weight) -> int: ...
    def vector(self, name: str) -> int: ...


def lower(trace: Trace, program: Program, weights: Weights) -> None:
    """Write `trace` into `program`. Raises `InvalidInput` for a trace that does not fit its operations."""
    _Lowering(trace, program, weights).run()


@dataclass
class _Lowering:
    trace: Trace
    program: Program
    weights: Weights
    buffers: dict[int, int] = field(default_factory=dict)  # of values
    free: dict[int, list[int]] = field(default_factory=dict)  # buffers by width
    rotations: dict[Rope, int] = field(default_factory=dict)
    folded: dict[int, Norm | Linear] = field(default_factory=dict)  # values written by whoever reads them

    def run(self) -> None:
        readers: dict[int, list[Op]] = {}
        for op in self.trace.ops:
            for value in _inputs(op):
                readers.setdefault(value.index, []).append(op)
        last = {index: ops[-1] for index, ops in readers.items()}
        for op in self.trace.ops:
            only = readers.get(op.out.index, []) if not isinstance(op, Logits) else []
            if isinstance(op, Norm | Linear) and len(only) == 1 and self._folds(op, only[0], last):
                self.folded[op.out.index] = op
                if last[op.x.index] is op:  # which will be read when its reader runs
                    last[op.x.index] = only[0]
                continue
            self._emit(op)
            for value in self._sources(op):
                if last[value.index] is op and value.index in self.buffers:
                    self.free.setdefault(value.width, []).append(self.buffers.pop(value.index))

    def _folds(self, op: Norm | Linear, reader: Op, last: dict[int, Op]) -> bool:
        if isinstance(reader, Add):  # which adds to the buffer of its other side, if that is needed no more
            other = reader.y if reader.x == op.out else reader.x
            return other != op.out and last[other.index] is reader and other.index not in self.folded
        return isinstance(op, Norm)

    def _sources(self, op: Op) -> list[Value]:
        """What `op` reads, through whatever was folded into it; a sum's target is renamed and not let go."""
        found = []
        for value in _inputs(op):
            while value.index in self.folded:
                value = self.folded[value.index].x  # noqa: PLW2901
            found.append(value)
        return found

    def _emit(self, op: Op) -> None:
        program, weights = self.program, self.weights
        match op:
            case Embed():
                program.embed(weights.matrix(op.table), op.scale, self._new(op.out))
            case Norm():
                raise InvalidInput(f"the norm {op.weight!r} is read by more than one operation")
            case Linear():
                self._linear(op, self._new(op.out), accumulate=False)
            case Gated():
                x, norm, eps = self._normed(op.x)
                gate, up = weights.matrix(op.gate), weights.matrix(op.up)
                program.gated(x, norm, eps, gate, up, op.activation == "gelu_tanh", self._new(op.out))
            case Attention():
                self._attention(op)
            case Add():
                self._add(op)
            case Logits():
                x, norm, eps = self._normed(op.x)
                program.logits(x, norm, eps, weights.matrix(op.head), op.softcap)

    def _linear(self, op: Linear, out: int, *, accumulate: bool) -> None:
        x, norm, eps = self._normed(op.x)
        matrices = [self.weights.matrix(weight) for weight in op.weights]
        biases = [self.weights.vector(name) for name in op.biases]
        self.program.linear(x, norm, eps, matrices, biases, out, accumulate)

    def _attention(self, op: Attention) -> None:
        rotation = self.rotations.get(op.rope)
        if rotation is None:
            rope = op.rope
            rotation = self.program.add_rotation(list(rope.inv_freq), rope.interleaved, rope.scale)
            self.rotations[rope] = rotation
        q_norm, k_norm = self.weights.vector(op.q_norm), self.weights.vector(op.k_norm)
        qkv, out = self.buffers[op.qkv.index], self._new(op.out)
        self.program.attention(
            qkv,
            out,
            op.layer,
            op.n_heads,
            op.scale,
            op.softcap,
            op.window,
            rotation,
            q_norm,
            k_norm,
            op.norm_eps,
        )

    def _add(self, op: Add) -> None:
        x, y = (op.y, op.x) if op.x.index in self.folded else (op.x, op.y)
        target = self.buffers.pop(x.index)
        term = self.folded.get(y.index)
        if isinstance(term, Linear):
            self._linear(term, target, accumulate=True)
        elif isinstance(term, Norm):
            inner = term.x
            self.program.add_norm(target, self.buffers[inner.index], self.weights.vector(term.weight), term.eps)
        else:
            self.program.add(target, self.buffers[y.index])
        self.buffers[op.out.index] = target

    def _normed(self, x: Value) -> tuple[int, int, float]:
        """Buffer, norm and epsilon of a product's input."""
        norm = self.folded.get(x.index)
        if isinstance(norm, Norm):
            return self.buffers[norm.x.index], self.weights.vector(norm.weight), norm.eps
        return self.buffers[x.index], -1, 0.0

    def _new(self, value: Value) -> int:
        free = self.free.get(value.width)
        self.buffers[value.index] = free.pop() if free else self.program.add_buffer(value.width)
        return self.buffers[value.index]


def _inputs(op: Op) -> list[Value]:
    match op:
        case Embed():
            return []
        case Attention():
            return [op.qkv]
        case Add():
            return [op.x, op.y]
        case _:
            return [op.x]
