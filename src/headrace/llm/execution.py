"""What runs a model: one step of many sequences in, the next tokens or their logits out.

The scheduler builds a `Batch` per step; an `Executor` (native in `headrace.llm.kernels`, NumPy in
`headrace.llm.reference`) runs it over its own pages of keys and values. Who holds which page is none of its business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PAGE_TOKENS", "Batch", "Executor", "Floats", "Output"]

PAGE_TOKENS = 16
"""Positions a page holds, for every layer at once."""

Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: S sequences, T >= 1 tokens, R of them asked for an output. A token gets the same numbers in any
    batch, if it is of a prompt in all or none of them.

    Attributes:
        tokens: int32[T], sequence after sequence.
        positions: int32[T], each token's place in its sequence; consecutive within a sequence.
        starts: int32[S + 1]; sequence s has tokens starts[s] up to starts[s + 1], at least one.
        block_tables: int32[S, n]; page block_tables[s, j] holds positions 16 j up to 16 j + 16 of sequence s. Pages of
            earlier positions are filled already; those of this step's tokens are written by it.
        rows: int32[R], indices into `tokens` whose next-token distribution is wanted.
        greedy: bool[R], True where the most likely token is enough.
        prompt_tokens: The first so many tokens, of whole sequences, are of prompts. Some executors compute these with
            other rounding than generated ones (`Executor.prompts_differ`).
    """

    tokens: Ints
    positions: Ints
    starts: Ints
    block_tables: Ints
    rows: Ints
    greedy: npt.NDArray[np.bool_]
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """`argmax` int32[R]: the most likely token of every row, the lowest id on a tie (-1 where the logits hold a NaN).
    `logits` float32[n, vocab]: of the rows that are not greedy, in order; valid until the next step."""

    argmax: Ints
    logits: Floats


class Executor(Protocol):
    """A loaded model with its pages. Not thread-safe: one thread steps it (the GIL is released while it computes).

    Attributes:
        vocab_size: Width of the logits.
        width: Width of the hidden state.
        n_pages: Pages there are, numbered from 0.
        page_bytes: Bytes of one page over all layers.
        max_tokens: Most tokens a step may hold.
        prompts_differ: Whether a token gets other numbers as part of a prompt than as a generated one.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def n_pages(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def prompts_differ(self) -> bool: ...

    def step(self, batch: Batch) -> Output:
        """Run one step. Raises `InvalidInput` for a batch of other shapes or with no such page or token."""
        ...

    def hidden(self, batch: Batch) -> Floats:
        """Run one step and return float32[R, width]: the final hidden state (after the last norm) of `rows`."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy what a page holds for all layers: the write half of copy-on-write."""
        ...

    def close(self) -> None:
        """Free the weights and pages; idempotent."""
        ...
