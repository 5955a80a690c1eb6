"""Owner of the pages: hands them out, counts who holds them, keeps full ones by name until room is needed.

A page is free (nothing in it), held (by one or more sequences) or idle (cached by name, held by nobody). Names form
chains: a named page hangs below the page before it in its text, and is evicted no later than that one.
"""

from __future__ import annotations

import numpy as np

from headrace.llm.kv.policy import IdlePages, Policy

__all__ = ["PagePool"]

EVICT_SHARE = 32
"""One of so many idle pages is evicted at once, because ranking them costs more than dropping them."""


class PagePool:
    """All pages of one executor. Not thread-safe.

    Attributes:
        n_pages: Pages there are.
        evicted: Pages evicted so far.
    """

    def __init__(self, n_pages: int, policy: Policy) -> None:
        self.n_pages = n_pages
        self.evicted = 0
        self._policy = policy
        self._clock = 0  # pages handed out so far: the time by which pages age
        self._free = list(range(n_pages - 1, -1, -1))
        self._idle: dict[int, None] = {}
        self._holders = [0] * n_pages
        self._by_name: dict[bytes, int] = {}
        self._names: list[bytes] = [b""] * n_pages
        self._before = [-1] * n_pages
        self._after: list[set[int]] = [set() for _ in range(n_pages)]
        self._depth = np.zeros(n_pages)
        self._contiguity = np.zeros(n_pages)
        self._accesses = np.zeros(n_pages)
        self._last_access = np.zeros(n_pages)

    @property
    def available(self) -> int:
        """Pages that `take` can hand out: the free and the idle."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """Pages that sequences hold."""
        return self.n_pages - self.available

    @property
    def cached(self) -> int:
        """Pages that have a name, held or not."""
        return len(self._by_name)

    def holders(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._holders[page]

    def find(self, name: bytes) -> int:
        """The page of that name, -1 when there is none."""
        return self._by_name.get(name, -1)

    def take(self) -> int:
        """A page to write to, held once; `available` must not be 0."""
        if not self._free:
            self._evict()
        page = self._free.pop()
        self._holders[page] = 1
        self._clock += 1
        return page

    def hold(self, page: int) -> None:
        """One holder more, of a held or idle page."""
        if self._holders[page] == 0:
            del self._idle[page]
        self._holders[page] += 1

    def touch(self, pages: list[int]) -> None:
        """The pages were found in the cache once more."""
        self._accesses[pages] += 1
        self._last_access[pages] = self._clock

    def drop(self, page: int) -> None:
        """One holder less; the last one leaves it idle if it has a name, else free."""
        assert self._holders[page] > 0, f"page {page} is held by nobody"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if self._names[page]:
                self._idle[page] = None
            else:
                self._free.append(page)

    def name(self, page: int, name: bytes, before: int) -> None:
        """Make a held page that is full and computed findable; `before` is the page before it in its text, or -1."""
        assert self._holders[page] > 0, f"page {page} is held by nobody"
        assert not self._names[page], f"page {page} has a name"
        assert name not in self._by_name, "the name is taken"
        self._by_name[name] = page
        self._names[page] = name
        self._before[page] = before
        if before >= 0:
            self._after[before].add(page)
            self._contiguity[before] = 1.0
        self._depth[page] = self._depth[before] + 1 if before >= 0 else 0
        self._contiguity[page] = 0.5
        self._accesses[page] = 1
        self._last_access[page] = self._clock

    def clear(self) -> None:
        """Forget every idle page."""
        while self._idle:
            self._forget(next(iter(self._idle)))

    def _evict(self) -> None:
        """Free the idle pages that the policy gives up first, and what hangs below them."""
        pages = np.fromiter(self._idle, np.int64, len(self._idle))
        idle = IdlePages(
            accesses=self._accesses[pages],
            age=(self._clock - self._last_access[pages]) / self.n_pages,
            contiguity=self._contiguity[pages],
            depth=self._depth[pages],
        )
        for page in pages[self._policy.decide(idle, max(1, len(pages) // EVICT_SHARE))].tolist():
            self._forget(page)

    def _forget(self, page: int) -> None:
        """Free an idle page and those below it, which nobody could find without it."""
        going = [page] if page in self._idle else []  # else it went with a page before it
        for page in going:
            going.extend(self._after[page])
            self._after[page].clear()
        for page in going:
            before = self._before[page]
            if before >= 0:
                self._after[before].discard(page)
                self._contiguity[before] = 1.0 if self._after[before] else 0.5
            del self._idle[page], self._by_name[self._names[page]]
            self._names[page], self._before[page] = b"", -1
            self._free.append(page)
        self.evicted += len(going)

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raise `AssertionError` unless every page is in exactly one state and its counts match `tables`, the pages of
        every sequence there is."""
        holders = [0] * self.n_pages
        for table in tables:
            for page in table:
                holders[page] += 1
        assert holders == self._holders, f"held {holders}, counted {self._holders}"
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        held = {page for page, count in enumerate(holders) if count}
        assert len(free) + len(idle) + len(held) == self.n_pages, "a page is in two states or in none"
        assert free | idle | held == set(range(self.n_pages)), "a page is lost"
        assert self._by_name == {name: page for page, name in enumerate(self._names) if name}, "names do not match"
        assert all(self._names[page] for page in idle), "an idle page has no name"
        assert not any(self._names[page] for page in free), "a free page has a name"
        for page in self._by_name.values():
            before = self._before[page]
            if before >= 0:
                assert self._names[before], f"page {page} hangs below one without a name"
                assert page in self._after[before], f"page {page} is not known to the one before it"
                assert not holders[page] or holders[before], f"page {page} is held, the one before it is not"
        assert sum(map(len, self._after)) == sum(before >= 0 for before in self._before), "links do not match"
