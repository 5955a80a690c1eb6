"""Whole texts through the model, outside any conversation: lists of tokens in, one row of numbers for each token out.

Perplexity, comparison with other engines and embeddings need this. It runs a portion at a time between the steps of
the running answers, on pages of its own that it gives back after each text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.errors import Cancelled, HeadraceError
from headrace.llm.execution import PAGE_TOKENS, Batch, Executor, Floats
from headrace.llm.kv import KvCache, PageTable

__all__ = ["Probe", "hidden_rows", "logit_rows", "unit_rows"]


def logit_rows(executor: Executor, batch: Batch) -> Floats:
    """float32[R, vocab]."""
    return executor.step(batch).logits


def hidden_rows(executor: Executor, batch: Batch) -> Floats:
    """float32[R, width]."""
    return executor.hidden(batch)


def unit_rows(width: int, means: list[npt.NDArray[np.floating]]) -> Floats:
    """float32[n, width]: these rows scaled to length 1."""
    vectors = np.concatenate([*means, np.empty((0, width))])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


class Probe:
    """Args:
        texts: Each of at least one token and no more than fit the pages.
        rows: What is wanted of each token: `logit_rows` or `hidden_rows`.
        width: Numbers in a row.
        portion: Most tokens at a time.
        ctx: When it ends, so does the work.
        mean: Whether the rows of a text are averaged, and not kept.

    Attributes:
        result: float32[n, width] for each text, or float64[1, width] of their mean.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        rows: Callable[[Executor, Batch], Floats],
        width: int,
        portion: int,
        ctx: Context,
        *,
        mean: bool = False,
    ) -> None:
        self.result: Future[list[npt.NDArray[np.floating]]] = Future()
        self.ctx = ctx
        self._texts = texts
        self._rows = rows
        self._portion = portion
        self._mean = mean
        self._out: list[npt.NDArray[np.floating]] = [
            np.zeros((1, width)) if mean else np.empty((len(text), width), np.float32) for text in texts
        ]
        self._text = self._position = 0
        self._table: PageTable | None = None

    def check(self) -> None:
        """Raise what ended the work, if nobody wants it any more."""
        self.ctx.check()
        if self.result.cancelled():
            raise Cancelled("nobody waits for this text any more")

    def advance(self, executor: Executor, kv: KvCache, limit: int) -> bool:
        """Compute up to `limit` tokens, as far as there are pages; True when the result is there."""
        parts: list[tuple[int, int, int, PageTable]] = []
        left = min(limit, self._portion)
        while left > 0 and self._text < len(self._texts):
            text, start = self._texts[self._text], self._position
            if self._table is None:
                table = kv.table([])
                if table.needed(0, len(text)) > kv.pool.available:
                    break
                table.grow(0, len(text))
                self._table = table
            end = min(len(text), start + left)
            parts.append((self._text, start, end, self._table))
            left -= end - start
            self._position = end
            if end == len(text):
                self._text, self._position, self._table = self._text + 1, 0, None
        if parts:
            self._compute(executor, parts)
        for text_index, _, end, table in parts:
            if end == len(self._texts[text_index]):
                table.release()
        if self._text < len(self._texts):
            return False
        if self._mean:
            self._out = [total / len(text) for total, text in zip(self._out, self._texts, strict=True)]
        if self.result.set_running_or_notify_cancel():
            self.result.set_result(self._out)
        return True

    def fail(self, error: HeadraceError) -> None:
        """Give up; the pages are free."""
        if self._table is not None:
            self._table.release()
        if not self.result.done() and self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)

    def _compute(self, executor: Executor, parts: list[tuple[int, int, int, PageTable]]) -> None:
        lengths = [end - start for _, start, end, _ in parts]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tables = np.zeros((len(parts), max(-(-end // PAGE_TOKENS) for _, _, end, _ in parts)), np.int32)
        for table, (_, _, end, pages) in zip(tables, parts, strict=True):
            n_pages = -(-end // PAGE_TOKENS)
            table[:n_pages] = pages.pages[:n_pages]
        n_tokens = int(starts[-1])
        rows = self._rows(
            executor,
            Batch(
                tokens=np.concatenate([self._texts[i][start:end] for i, start, end, _ in parts]).astype(np.int32),
                positions=np.concatenate([np.arange(start, end, dtype=np.int32) for _, start, end, _ in parts]),
                starts=starts,
                block_tables=tables,
                rows=np.arange(n_tokens, dtype=np.int32),
                greedy=np.zeros(n_tokens, np.bool_),
                prompt_tokens=n_tokens,
            ),
        )
        for (i, start, end, _), first in zip(parts, starts.tolist(), strict=False):
            own = rows[first : first + end - start]
            if self._mean:
                self._out[i] = np.concatenate([self._out[i], own]).sum(axis=0, keepdims=True)  # one after the other
            else:
                self._out[i][start:end] = own
