"""The pages of one sequence: tokens to be computed in, pages to write them to and pages found in the cache out.

Full pages are named by what they hold: a digest over their tokens, how many of these are of a prompt, and the page
before. So equal names mean equal bits, whoever computed them: executors give a token the same numbers in any batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from headrace.llm.execution import PAGE_TOKENS
from headrace.llm.kv.pool import PagePool

__all__ = ["PageTable", "page_names"]


def page_names(salt: bytes, names: list[bytes], tokens: Sequence[int], n_tokens: int, n_prompt: int) -> None:
    """Append to `names` those of the full pages among the first `n_tokens` tokens, of which `n_prompt` are a prompt;
    names[j] is that of page j."""
    for j in range(len(names), n_tokens // PAGE_TOKENS):
        of_prompt = min(max(n_prompt - j * PAGE_TOKENS, 0), PAGE_TOKENS)
        content = array("i", [*tokens[j * PAGE_TOKENS : (j + 1) * PAGE_TOKENS], of_prompt]).tobytes()
        names.append(blake2b((names[-1] if names else salt) + content, digest_size=16).digest())


class PageTable:
    """Pages of the positions 0 up to what has been grown; page j holds positions 16 j up to 16 j + 16.

    Attributes:
        pages: Their numbers.
        names: Names of the full pages of the sequence as far as they are known, cached or not.
        synced: Pages before this one have not changed since it was last set (by who mirrors them).
    """

    __slots__ = ("__weakref__", "_n_named", "_pool", "names", "pages", "synced")

    def __init__(self, pool: PagePool, names: list[bytes]) -> None:
        self._pool = pool
        self._n_named = 0
        self.pages: list[int] = []
        self.names = names
        self.synced = 0

    def cost(self, n_tokens: int, limit: int) -> int:
        """Pages out of those available that a sequence without pages takes to have room for `n_tokens`, when it
        uses what is cached of its first `limit` tokens."""
        shared = 0
        for name in self.names[: limit // PAGE_TOKENS]:
            page = self._pool.find(name)
            if page < 0:
                break
            shared += self._pool.holders(page) > 0
        return -(-n_tokens // PAGE_TOKENS) - shared

    def reuse(self, limit: int) -> int:
        """Hold the cached pages of the longest known beginning of at most `limit` tokens; returns its tokens."""
        assert not self.pages
        for name in self.names[: limit // PAGE_TOKENS]:
            page = self._pool.find(name)
            if page < 0:
                break
            self._pool.hold(page)
            self.pages.append(page)
        self._pool.touch(self.pages)
        self._n_named, self.synced = len(self.pages), 0
        return len(self.pages) * PAGE_TOKENS

    def needed(self, start: int, end: int) -> int:
        """Pages to take so that positions `start` up to `end` can be written."""
        pages = self.pages
        missing = (end + PAGE_TOKENS - 1) // PAGE_TOKENS - len(pages)
        first = start // PAGE_TOKENS
        if first < len(pages) and self._pool.holders(pages[first]) > 1:
            return max(0, missing) + 1
        return max(0, missing)

    def room(self, start: int, available: int) -> int:
        """Positions from `start` on that can be written when `available` pages can be taken."""
        first = start // PAGE_TOKENS
        if first < len(self.pages) and self._pool.holders(self.pages[first]) > 1:
            if available == 0:
                return 0
            available -= 1
        return (len(self.pages) + available) * PAGE_TOKENS - start

    def grow(self, start: int, end: int) -> tuple[int, int] | None:
        """Take the pages that `needed` counts. Returns (source, target) where a page that others hold too has to be
        copied before it is written."""
        pages, copy = self.pages, None
        first = start // PAGE_TOKENS
        if first < len(pages) and self._pool.holders(pages[first]) > 1:
            copy = (pages[first], self._pool.take())
            self._pool.drop(pages[first])
            pages[first] = copy[1]
            self.synced = min(self.synced, first)
        while len(pages) * PAGE_TOKENS < end:
            pages.append(self._pool.take())
        return copy

    def commit(self, salt: bytes, tokens: Sequence[int], n_computed: int, n_prompt: int) -> None:
        """The first `n_computed` tokens are computed, the first `n_prompt` as a prompt: name the pages that are full
        now.

        A page that somebody else has computed and named meanwhile takes the place of ours; they hold the same bits.
        """
        if n_computed // PAGE_TOKENS <= self._n_named:
            return
        page_names(salt, self.names, tokens, n_computed, n_prompt)
        for j in range(self._n_named, n_computed // PAGE_TOKENS):
            page, twin = self.pages[j], self._pool.find(self.names[j])
            if twin < 0:
                self._pool.name(page, self.names[j], self.pages[j - 1] if j else -1)
            elif twin != page:
                self._pool.hold(twin)
                self._pool.drop(page)
                self.pages[j] = twin
                self.synced = min(self.synced, j)
            self._n_named = j + 1

    def fork(self) -> PageTable:
        """A table that shares all pages, the partly filled one too; whoever writes to that first copies it."""
        twin = PageTable(self._pool, list(self.names))
        twin.pages = list(self.pages)
        twin._n_named = self._n_named
        for page in twin.pages:
            self._pool.hold(page)
        return twin

    def release(self) -> None:
        """Give all pages back; idempotent. The names stay known, so that `reuse` may find them again."""
        for page in reversed(self.pages):
            self._pool.drop(page)
        self.pages = []
        self._n_named = self.synced = 0
