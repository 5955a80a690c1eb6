"""Turns a plan into a `Batch`: answers with their numbers of tokens in, the executor's arrays out.

The arrays are made once and filled anew each step; page tables are kept in step with the answers' own, so that a step
writes only what has changed. A batch is valid until the next one is built.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.llm.execution import PAGE_TOKENS, Batch
from headrace.llm.sequence import Answer

__all__ = ["BatchBuilder"]


class BatchBuilder:
    """Args: most answers and tokens of a step, and the most positions a sequence may have."""

    def __init__(self, max_batch: int, max_tokens: int, max_context: int) -> None:
        self._tokens = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._starts = np.zeros(max_batch + 1, np.int32)
        self._rows = np.zeros(max_tokens, np.int32)
        self._greedy = np.zeros(max_tokens, np.bool_)
        n_pages = -(-max_context // PAGE_TOKENS)
        self._tables = np.zeros((max_batch, n_pages), np.int32)
        self._gathered = np.zeros(max_batch * n_pages, np.int32)
        self._gathered_for: tuple[list[int], int] = ([], 0)
        self._count = np.arange(max(max_tokens, max_context) + 1, dtype=np.int32)

    def build(self, run: Sequence[tuple[Answer, int]]) -> Batch:
        """The batch that computes the next n tokens of every (answer, n), guesses after the known ones; prompts come
        first.

        Asks for an output after the last known token and after each guess.
        """
        end = n_rows = widest = prompt_tokens = 0
        slots: list[int] = []
        changed = False
        for s, (answer, n) in enumerate(run):
            start, end = end, end + n
            computed, n_known = answer.computed, len(answer.tokens)
            self._starts[s] = start
            if computed < answer.n_prompt:
                prompt_tokens = end
            if n == 1:
                self._tokens[start] = answer.tokens[computed]
                self._positions[start] = computed
            else:
                self._fill(answer, start, n)
            if computed + n >= n_known:
                greedy = answer.writer.sampler.greedy
                for row in range(start + n_known - computed - 1, end):
                    self._rows[n_rows] = row
                    self._greedy[n_rows] = greedy
                    n_rows += 1
            table = answer.table
            if table.synced < len(table.pages):
                self._tables[answer.slot, table.synced : len(table.pages)] = table.pages[table.synced :]
                table.synced = len(table.pages)
                changed = True
            widest = max(widest, len(table.pages))
            slots.append(answer.slot)
        self._starts[len(run)] = end
        return Batch(
            tokens=self._tokens[:end],
            positions=self._positions[:end],
            starts=self._starts[: len(run) + 1],
            block_tables=self._gather(slots, widest, changed),
            rows=self._rows[:n_rows],
            greedy=self._greedy[:n_rows],
            prompt_tokens=prompt_tokens,
        )

    def _gather(self, slots: list[int], n_pages: int, changed: bool) -> npt.NDArray[np.int32]:
        """int32[S, n_pages], the tables of these slots; as they were in the last step, if nothing has changed."""
        tables = self._gathered[: len(slots) * n_pages].reshape(len(slots), n_pages)
        if changed or self._gathered_for != (slots, n_pages):
            for table, slot in zip(tables, slots, strict=True):  # np.take would drop the GIL, and wait for it
                table[:] = self._tables[slot, :n_pages]
            self._gathered_for = (slots, n_pages)
        return tables

    def _fill(self, answer: Answer, start: int, n: int) -> None:
        """The tokens of one answer, where there are several."""
        first, end = answer.computed, answer.computed + n
        known = answer.tokens[first:end]
        self._tokens[start : start + len(known)] = known
        if len(known) < n:
            self._tokens[start + len(known) : start + n] = answer.guesses[: n - len(known)]
        self._positions[start : start + n] = self._count[first:end]
