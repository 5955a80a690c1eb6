"""Which eviction policy finds most of its prompts again, on traffic of many tenants: no model, only pages.

The trace is made from a seed: tenants of unequal popularity with system prompts of their own, conversations of several
turns that pause between them and bring all they have said so far, questions asked once with the same few examples in
front, and long documents that come once and never again. Eight requests hold their pages at any time. The hit rate is
the share of prompt tokens found; `unlimited` is what a cache without end would find.

    python bench/kv.py
    python bench/kv.py --json --requests 20000
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections import deque
from collections.abc import Iterator
from itertools import count

from _common import progress, table
from headrace.llm.execution import PAGE_TOKENS
from headrace.llm.kv import KvCache, PageTable, make_policy
from headrace.llm.kv.policy import POLICIES

TENANTS = 40
AT_ONCE = 8
PAGES = (512, 1024, 2048, 4096, 8192)
MOST_TOKENS = 4096


class Talk:
    """A conversation: all of its tokens so far, and how many turns are to come."""

    def __init__(self, tokens: list[int], turns: int) -> None:
        self.tokens, self.turns = tokens, turns


def trace(seed: int, n_requests: int) -> Iterator[tuple[list[int], list[int]]]:
    """(prompt, answer) after (prompt, answer), in order of arrival."""
    rng = random.Random(seed)
    fresh = count(1000)

    def text(low: int, high: int) -> list[int]:
        return [next(fresh) for _ in range(rng.randint(low, high))]

    systems = [text(100, 1200) for _ in range(TENANTS)]
    examples = [text(400, 1500) for _ in range(TENANTS)]
    weights = [1 / (rank + 1) for rank in range(TENANTS)]  # Zipf
    pauses: list[tuple[float, int, Talk]] = []
    order = count()
    now_s = 0.0
    for _ in range(n_requests):
        now_s += rng.expovariate(1.0)
        if pauses and pauses[0][0] <= now_s:
            _, _, talk = heapq.heappop(pauses)
        else:
            tenant = rng.choices(range(TENANTS), weights)[0]
            kind = rng.random()
            if kind < 0.55:
                talk = Talk(list(systems[tenant]), turns=1 + int(rng.expovariate(1 / 4)))
            elif kind < 0.9:
                talk = Talk(list(examples[tenant]), turns=1)
            else:
                talk = Talk(text(1500, 3500), turns=1)
        prompt = talk.tokens + text(15, 200)
        answer = text(20, 300)
        yield prompt, answer
        talk.tokens, talk.turns = prompt + answer, talk.turns - 1
        if talk.turns > 0 and len(talk.tokens) < MOST_TOKENS - 500:
            heapq.heappush(pauses, (now_s + rng.lognormvariate(4.0, 1.0), next(order), talk))


def hit_rate(requests: list[tuple[list[int], list[int]]], n_pages: int, policy: str) -> float:
    """Share of prompt tokens that were found."""
    kv = KvCache(n_pages, make_policy(policy), salt=b"bench")
    running: deque[PageTable] = deque()
    found = wanted = 0
    for prompt, answer in requests:
        pages = kv.table(kv.names(prompt))
        tokens = prompt + answer
        while len(running) >= AT_ONCE or (running and pages.cost(len(tokens), len(prompt) - 1) > kv.pool.available):
            running.popleft().release()
        found += pages.reuse(len(prompt) - 1)
        wanted += len(prompt)
        pages.grow(len(pages.pages) * PAGE_TOKENS, len(tokens))
        kv.commit(pages, tokens, len(tokens), len(tokens))
        running.append(pages)
    return found / wanted


def measure(n_requests: int, seeds: int) -> dict[str, dict[str, float]]:
    """Hit rates by policy, by pages; the mean over seeds."""
    figures: dict[str, dict[str, float]] = {}
    traces = [list(trace(seed, n_requests)) for seed in range(seeds)]
    for policy in sorted(POLICIES):
        figures[policy] = {}
        for n_pages in PAGES:
            rates = [hit_rate(requests, n_pages, policy) for requests in traces]
            figures[policy][str(n_pages)] = round(sum(rates) / len(rates), 4)
            progress(f"{policy}, {n_pages} pages: {figures[policy][str(n_pages)]:.1%}")
    endless = sum(len(prompt) + len(answer) for requests in traces for prompt, answer in requests) // PAGE_TOKENS
    rates = [hit_rate(requests, endless, "lru") for requests in traces]
    figures["unlimited"] = dict.fromkeys(map(str, PAGES), round(sum(rates) / len(rates), 4))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=6000, help="in each trace")
    parser.add_argument("--seeds", type=int, default=3, help="traces to take the mean over")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args()
    figures = measure(options.requests, options.seeds)
    if not options.json:
        head = ["found again", *(f"{n} pages" for n in PAGES)]
        print(table(head, [[name, *(f"{rate:.1%}" for rate in row.values())] for name, row in figures.items()]))
        print()
    print(json.dumps({"bench": "kv", "requests": options.requests, "seeds": options.seeds, "hit_rate": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
