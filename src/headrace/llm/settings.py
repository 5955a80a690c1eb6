"""How an engine is set up: sizes and policies in, checked; how many pages of keys and values that makes out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real

from headrace.core.machine import machine
from headrace.errors import ConfigError
from headrace.llm.execution import PAGE_TOKENS
from headrace.llm.kv.policy import make_policy
from headrace.llm.trace import Attention, Trace

__all__ = ["EngineSettings", "check_number", "page_bytes", "page_count"]

MOST_KV_BYTES = 1 << 30
"""Keys and values take no more than this unless it is asked for (memory is only used when pages are)."""


MOST_STEP_TOKENS = 1 << 16
"""Every buffer between two operations has a row for each."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Raises `ConfigError` naming the setting that cannot be.

    Attributes:
        max_context: Most tokens of a prompt and its answer together.
        max_batch: Most answers computed at once.
        max_queue: Most that wait; one more is refused with `Overloaded`.
        step_tokens: Most tokens of a step.
        guesses: Most tokens of generating answers in a step with guessed ones (`SamplingParams.lookup`).
        slack: How much longer a step may take for the sake of other requests' prompts, as a share of its time
            without them; where there are more prompts than generating answers, so many times more.
        policy: Which cached pages go first: "score", "lru" or "lfu".
    """

    max_context: int
    max_batch: int = 32
    max_queue: int = 256
    step_tokens: int = 512
    guesses: int = 8
    slack: float = 0.8
    policy: str = "score"

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "policy":
                continue
            low = 2 if field.name == "max_context" else 0 if field.name in ("guesses", "slack") else 1
            high = MOST_STEP_TOKENS if field.name == "step_tokens" else 1 << 31
            kind = Real if field.name == "slack" else Integral
            check_number(field.name, getattr(self, field.name), low, high, kind)
        if self.max_batch > self.step_tokens:
            raise ConfigError(f"max_batch: expected at most step_tokens, {self.step_tokens}, got {self.max_batch}")
        make_policy(self.policy)


def check_number(name: str, value: object, low: float, high: float, kind: type = Integral) -> None:
    """Raise `ConfigError` unless it is a whole number (or any, with `kind` Real) from `low` to `high`."""
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:  # type: ignore[operator]
        what = "a whole number" if kind is Integral else "a number"
        raise ConfigError(f"{name}: expected {what} from {low} to {high}, got {value!r}")


def page_bytes(trace: Trace, kv_type: str) -> int:
    """About how many bytes a page takes over all layers."""
    numbers = sum(2 * op.n_kv_heads * op.head_dim for op in trace.ops if isinstance(op, Attention))
    return PAGE_TOKENS * numbers * (2 if kv_type == "f16" else 1)


def page_count(page_bytes: int, max_context: int, max_batch: int, kv_bytes: int | None) -> int:
    """Pages for `kv_bytes`, or by default for `max_batch` full contexts, within a quarter of the memory and 1 GiB but
    never less than one context."""
    one = -(-max_context // PAGE_TOKENS)
    if kv_bytes is not None:
        pages = kv_bytes // page_bytes
        if pages < 1:
            raise ConfigError(f"kv_bytes: expected at least one page of {page_bytes} bytes, got {kv_bytes}")
        return pages
    here = machine()
    memory_bytes = here.limits.memory_bytes or here.memory_bytes or 4 * MOST_KV_BYTES
    return max(one, min(one * max_batch, min(MOST_KV_BYTES, memory_bytes // 4) // page_bytes))
