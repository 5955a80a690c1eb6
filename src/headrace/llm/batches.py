"""Batches made, taken apart and checked: what every executor and everyone who feeds one by hand needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.llm.execution import PAGE_TOKENS, Batch

__all__ = ["check_batch", "each_token", "one_sequence"]


def one_sequence(
    tokens: Sequence[int] | npt.NDArray[np.int32],
    pages: Sequence[int] | npt.NDArray[np.int32],
    *,
    position: int = 0,
    rows: npt.NDArray[np.int32] | None = None,
    greedy: bool = False,
    generated: bool = False,
) -> Batch:
    """A batch of one sequence whose next tokens stand at `position` and on.

    Args:
        tokens: The tokens of this step.
        pages: The sequence's block table, as far as the last of them.
        position: Place of the first.
        rows: Which of them an output is wanted for; None: all.
        greedy: Whether the most likely token is enough.
        generated: Whether they count as generated tokens, not as a prompt.
    """
    n = len(tokens)
    wanted = np.arange(n, dtype=np.int32) if rows is None else rows
    return Batch(
        tokens=np.asarray(tokens, np.int32),
        positions=np.arange(position, position + n, dtype=np.int32),
        starts=np.array([0, n], np.int32),
        block_tables=np.asarray(pages, np.int32)[None],
        rows=wanted,
        greedy=np.full(len(wanted), greedy),
        prompt_tokens=0 if generated else n,
    )


def each_token(batch: Batch) -> Iterator[Batch]:
    """The batch as batches of one token, in order; each sees the pages that those before it have written."""
    for s, (start, end) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
        for t in range(start, end):
            yield Batch(
                tokens=batch.tokens[t : t + 1],
                positions=batch.positions[t : t + 1],
                starts=np.array([0, 1], np.int32),
                block_tables=batch.block_tables[s : s + 1],
                rows=np.zeros(0, np.int32),
                greedy=np.zeros(0, np.bool_),
                prompt_tokens=int(t < batch.prompt_tokens),
            )


def check_batch(batch: Batch, *, n_pages: int, max_tokens: int, vocab_size: int) -> None:
    """Raise `InvalidInput` for a batch whose shapes, tokens, positions or pages cannot be."""
    n_tokens, starts, tables = len(batch.tokens), batch.starts, batch.block_tables
    if not 1 <= n_tokens <= max_tokens:
        raise InvalidInput(f"tokens: expected 1 to {max_tokens}, got {n_tokens}")
    if len(batch.positions) != n_tokens:
        raise InvalidInput(f"positions: expected {n_tokens}, one for each token, got {len(batch.positions)}")
    if len(starts) < 1 or starts[0] != 0 or starts[-1] != n_tokens or (np.diff(starts) < 1).any():
        raise InvalidInput(f"starts: expected rising numbers from 0 to {n_tokens}, got {starts.tolist()}")
    if tables.ndim != 2 or len(tables) != len(starts) - 1:
        raise InvalidInput(f"block_tables: expected {len(starts) - 1} rows, got the shape {list(tables.shape)}")
    if batch.prompt_tokens not in starts:
        raise InvalidInput(f"prompt_tokens: expected those of whole sequences, got {batch.prompt_tokens}")
    if len(batch.greedy) != len(batch.rows):
        raise InvalidInput(f"greedy: expected {len(batch.rows)}, one for each row, got {len(batch.greedy)}")
    _below("tokens", batch.tokens, vocab_size)
    _below("rows", batch.rows, n_tokens)
    for table, start, end in zip(tables, starts, starts[1:], strict=False):
        positions = batch.positions[start:end]
        if (np.diff(positions) != 1).any():
            raise InvalidInput("positions: expected consecutive numbers within a sequence")
        _below("positions", positions, len(table) * PAGE_TOKENS)
        _below("block_tables", table[positions[0] // PAGE_TOKENS : positions[-1] // PAGE_TOKENS + 1], n_pages)


def _below(name: str, values: npt.NDArray[np.int32], end: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < end):
        raise InvalidInput(f"{name}: expected numbers from 0 to {end - 1}, got {values.min()} to {values.max()}")
