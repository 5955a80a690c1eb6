"""The native executor: a trace and a checkpoint in, steps at the speed of the machine out.

Weights are packed once (native/include/headrace/llm/packed.hpp) and kept on disk (`headrace.llm.weights`); later loads
map them. The GIL is released while a step computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import InvalidInput, LoadFailed, Unavailable
from headrace.llm.execution import Batch, Floats, Output
from headrace.llm.formats.checkpoint import Checkpoint, TensorInfo
from headrace.llm.lower import lower
from headrace.llm.trace import Attention, Embed, Gated, Linear, Logits, Trace, Weight
from headrace.llm.weight_file import Writer
from headrace.llm.weights import WeightCache

__all__ = ["Activations", "KvType", "NativeExecutor", "Progress", "WeightBits", "packed_size"]

Activations: TypeAlias = Literal["int8", "int12"]

KvType: TypeAlias = Literal["f16", "int8"]

WeightBits: TypeAlias = Literal[4, 8]

LAYOUT = "strips 1"
"""Changes whenever packed bytes do, so that weights packed by an older version are not taken for today's."""

Progress: TypeAlias = Callable[[int, int], None]


class NativeExecutor:
    """Runs a traced model natively. Implements `headrace.llm.execution.Executor`; one thread steps it.

    Args:
        trace: What to run.
        checkpoint: Where the weights are; not needed any more once this is constructed.
        n_pages: Pages of keys and values, allocated as they are used.
        threads: Threads that share a step; default: one per usable CPU.
        max_tokens: Most tokens of a step.
        kv_type: How keys and values are stored: float16, or int8 with one scale per token and head.
        activations: How what matrices are multiplied with is rounded, 32 numbers with a scale of their own: to 8 bits,
            as most engines do, or to 12. Prompts are rounded to bfloat16 instead where the processor has AMX.
        weight_bits: Of matrices that the file holds as floats, 8 or 4. Quantised ones keep their codes.
        isa: Instruction set, e.g. "avx2"; default: `$HEADRACE_ISA`, else the best there is.
        cache: Where packed weights are kept; default: the user's cache.
        progress: Called with matrices packed so far and in all while weights are packed for the first time.

    Raises `LoadFailed` naming the tensor at fault, `ConfigError` for an instruction set that cannot be used.
    """

    def __init__(
        self,
        trace: Trace,
        checkpoint: Checkpoint,
        *,
        n_pages: int,
        threads: int | None = None,
        max_tokens: int = 512,
        kv_type: KvType = "f16",
        activations: Activations = "int12",
        weight_bits: WeightBits = 8,
        isa: str = "",
        cache: WeightCache | None = None,
        progress: Progress | None = None,
    ) -> None:
        layers = [op for op in trace.ops if isinstance(op, Attention)]
        if not layers or len({(op.n_kv_heads, op.head_dim) for op in layers}) != 1:
            raise InvalidInput("the native executor needs layers that agree on the number and size of their kv heads")
        if kv_type not in ("f16", "int8"):
            raise InvalidInput(f"kv_type: expected 'f16' or 'int8', got {kv_type!r}")
        if activations not in ("int8", "int12"):
            raise InvalidInput(f"activations: expected 'int8' or 'int12', got {activations!r}")
        if weight_bits not in (4, 8):
            raise InvalidInput(f"weight_bits: expected 4 or 8, got {weight_bits!r}")
        self._n_pages, self._max_tokens = n_pages, max_tokens
        self._program: Any = _native.Program(
            isa,
            threads or len(os.sched_getaffinity(0)),
            max_tokens,
            n_pages,
            len(layers),
            layers[0].n_kv_heads,
            layers[0].head_dim,
            kv_type == "int8",
            activations == "int12",
        )
        weights = _Weights(self._program, checkpoint, matrices(trace), weight_bits, cache or WeightCache(), progress)
        lower(trace, self._program, weights)
        self._program.finish()
        logits = trace.ops[-1]
        assert isinstance(logits, Logits)
        self._vocab, self._width = logits.head.rows, logits.x.width
        self._logits = np.empty((1, self._vocab), np.float32)

    @property
    def vocab_size(self) -> int:
        return self._vocab

    @property
    def width(self) -> int:
        return self._width

    @property
    def n_pages(self) -> int:
        return self._n_pages

    @property
    def page_bytes(self) -> int:
        return int(self._live().page_bytes)

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    @property
    def prompts_differ(self) -> bool:
        return bool(self._live().prompts_differ)

    def step(self, batch: Batch) -> Output:
        """Run one step. Raises `InvalidInput` for a batch of other shapes or with no such page or token."""
        if len(batch.greedy) != len(batch.rows):
            raise InvalidInput(f"greedy: expected {len(batch.rows)}, one for each row, got {len(batch.greedy)}")
        order = np.argsort(batch.greedy, kind="stable")  # rows whose logits are wanted come first
        n = len(order)
        if len(self._logits) < n:
            self._logits = np.empty((n, self._vocab), np.float32)
        logits, chosen = self._logits[:n], np.empty(n, np.int32)
        rows = batch.rows[order]
        self._live().step(
            batch.tokens,
            batch.positions,
            batch.starts,
            batch.block_tables,
            batch.prompt_tokens,
            rows,
            chosen,
            logits,
        )
        argmax = np.empty(n, np.int32)
        argmax[order] = chosen
        return Output(argmax, logits[: n - int(batch.greedy.sum())])

    def hidden(self, batch: Batch) -> Floats:
        """Run one step and return float32[R, width]: the final hidden state (after the last norm) of `rows`."""
        out = np.empty((len(batch.rows), self._width), np.float32)
        self._live().hidden(
            batch.tokens,
            batch.positions,
            batch.starts,
            batch.block_tables,
            batch.prompt_tokens,
            batch.rows,
            out,
        )
        return out

    def copy_page(self, source: int, target: int) -> None:
        self._live().copy_page(source, target)

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None

    def _live(self) -> Any:
        if self._program is None:
            raise Unavailable("the executor is closed")
        return self._program


def matrices(trace: Trace) -> list[Weight]:
    """Every matrix a trace multiplies or looks up, each once, in order of use."""
    found: dict[Weight, None] = {}
    for op in trace.ops:
        match op:
            case Embed():
                found[op.table] = None
            case Linear():
                found.update(dict.fromkeys(op.weights))
            case Gated():
                found.update({op.gate: None, op.up: None})
            case Logits():
                found[op.head] = None
            case _:
                pass
    return list(found)


def packed_size(trace: Trace, checkpoint: Checkpoint, weight_bits: WeightBits = 8) -> int:
    """Bytes that the matrices of a trace take packed; raises `LoadFailed` naming one that cannot be."""
    total = 0
    for weight in matrices(trace):
        try:
            total += _native.packed_bytes(checkpoint.tensors[weight.name].type, weight_bits, weight.rows, weight.cols)
        except InvalidInput as error:
            raise LoadFailed(f"{checkpoint.path}: tensor {weight.name!r}: {error}") from error
    return total


class _Weights:
    """Adds weights to a program when they are first asked for; implements `lower.Weights`."""

    def __init__(
        self,
        program: Any,
        checkpoint: Checkpoint,
        wanted: list[Weight],
        weight_bits: WeightBits,
        cache: WeightCache,
        progress: Progress | None,
    ) -> None:
        self._program, self._checkpoint, self._weight_bits = program, checkpoint, weight_bits
        self._matrices: dict[Weight, int] = {}
        self._vectors: dict[str, int] = {"": -1}
        key = cache.key(checkpoint.files, f"{LAYOUT} {weight_bits}")
        label = os.path.realpath(checkpoint.path)
        self._packed = cache.open(key, lambda writer: self._pack(writer, wanted, progress), label=label)
        self._multipliers = self._packed["multipliers"].view(np.float32)
        self._order = {weight: i for i, weight in enumerate(wanted)}

    def matrix(self, weight: Weight) -> int:
        if weight not in self._matrices:
            kind = self._info(weight).type
            data = self._packed[_blob(weight)]
            multiplier = float(self._multipliers[self._order[weight]])
            self._matrices[weight] = self._program.add_matrix(
                data, kind, self._weight_bits, weight.rows, weight.cols, multiplier
            )
        return self._matrices[weight]

    def vector(self, name: str) -> int:
        if name not in self._vectors:
            self._vectors[name] = self._program.add_vector(np.ascontiguousarray(self._checkpoint.dequantise(name)))
        return self._vectors[name]

    def _pack(self, writer: Writer, wanted: list[Weight], progress: Progress | None) -> None:
        multipliers = np.ones(len(wanted), np.float32)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for i, (packed, multiplier) in enumerate(threads.map(self._packed_bytes, wanted)):
                writer.write(_blob(wanted[i]), packed)
                multipliers[i] = multiplier
                if progress is not None:
                    progress(i + 1, len(wanted))
        writer.write("multipliers", multipliers)

    def _packed_bytes(self, weight: Weight) -> tuple[npt.NDArray[np.uint8], float]:
        info = self._info(weight)
        row_bytes = info.data.size // info.shape[0]
        source = info.data[weight.first * row_bytes : (weight.first + weight.rows) * row_bytes]
        try:
            out = np.empty(_native.packed_bytes(info.type, self._weight_bits, weight.rows, weight.cols), np.uint8)
            return out, _native.pack(info.type, self._weight_bits, source, weight.rows, weight.cols, out)
        except InvalidInput as error:
            raise LoadFailed(f"{self._checkpoint.path}: tensor {weight.name!r}: {error}") from error

    def _info(self, weight: Weight) -> TensorInfo:
        return self._checkpoint.tensors[weight.name]


def _blob(weight: Weight) -> str:
    return f"{weight.name}[{weight.first}:{weight.first + weight.rows}]"
