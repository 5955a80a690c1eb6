"""Paged keys and values: who holds which page, what is reused, what is evicted."""

from __future__ import annotations

from headrace.llm.kv.cache import KvCache
from headrace.llm.kv.policy import Policy, make_policy
from headrace.llm.kv.table import PageTable

__all__ = ["KvCache", "PageTable", "Policy", "make_policy"]
