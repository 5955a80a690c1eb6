"""Keys and values of all sequences, as pages: prompts in, page tables out, with what is known about reuse."""

from __future__ import annotations

import os
from collections.abc import Sequence
from weakref import WeakSet

from headrace.llm.kv.policy import Policy
from headrace.llm.kv.pool import PagePool
from headrace.llm.kv.table import PageTable, page_names

__all__ = ["KvCache"]


class KvCache:
    """Makes the tables of sequences over one pool of pages. Not thread-safe, but for `names`.

    Args:
        n_pages: Pages of the executor.
        policy: What is evicted first.
        prompts_differ: Whether a token of a prompt is computed differently from a generated one, and no page of one
            kind may stand for one of the other.
        salt: Goes into every name; random unless given, so that nobody can guess what makes two names equal.
    """

    def __init__(self, n_pages: int, policy: Policy, *, prompts_differ: bool = False, salt: bytes = b"") -> None:
        self.pool = PagePool(n_pages, policy)
        self._prompts_differ = prompts_differ
        self._salt = salt or os.urandom(16)
        self._tables: WeakSet[PageTable] = WeakSet()

    def names(self, prompt: Sequence[int]) -> list[bytes]:
        """Names of the full pages of a prompt; costs about a microsecond a page and may run on any thread."""
        names: list[bytes] = []
        page_names(self._salt, names, prompt, len(prompt), len(prompt))
        return names

    def table(self, names: list[bytes]) -> PageTable:
        """The table of a new sequence that knows these names of its pages."""
        return self._track(PageTable(self.pool, names))

    def fork(self, table: PageTable) -> PageTable:
        """See `PageTable.fork`."""
        return self._track(table.fork())

    def commit(self, table: PageTable, tokens: Sequence[int], n_computed: int, n_prompt: int) -> None:
        """See `PageTable.commit`."""
        table.commit(self._salt, tokens, n_computed, n_prompt if self._prompts_differ else n_computed)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless every page is accounted for; see `PagePool.check_integrity`."""
        self.pool.check_integrity([table.pages for table in self._tables if table.pages])

    def _track(self, table: PageTable) -> PageTable:
        self._tables.add(table)
        return table
