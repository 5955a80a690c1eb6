"""An executor whose numbers follow from every token of a sequence as its pages hold it, and engines around it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from headrace.core.telemetry import Tracer
from headrace.llm.engine import Engine
from headrace.llm.execution import PAGE_TOKENS, Batch, Output
from headrace.llm.metrics import LlmMetrics
from headrace.llm.settings import EngineSettings

VOCAB = 64


class DigestExecutor:
    """Keeps in its pages, instead of keys and values, each position's token, and whether it was computed as a prompt;
    the logits after a token are drawn from a digest of all that the sequence's pages hold up to it. So one wrong, lost
    or stale position, or a page shared too early or with the wrong kind of tokens, changes the text, as it would (less
    surely) with a real model. Mostly the token five places back comes again, so that looking up what followed before
    pays.

    `gate`, when set, is called at the beginning of each step.
    """

    vocab_size = VOCAB
    width = 8
    prompts_differ = True

    def __init__(self, n_pages: int, max_tokens: int = 512) -> None:
        self.n_pages, self.max_tokens, self.page_bytes = n_pages, max_tokens, PAGE_TOKENS * 8
        self.pages = np.full((n_pages, PAGE_TOKENS), -1, np.int32)
        self.steps = 0
        self.gate: Callable[[Batch], None] = lambda batch: None
        self.check: Callable[[], None] = lambda: None
        self.closed = False

    def step(self, batch: Batch) -> Output:
        rows = self._rows(batch)
        logits = np.array([self._logits(held) for held in rows], np.float32).reshape(-1, VOCAB)
        return Output(logits.argmax(axis=1).astype(np.int32), logits[~batch.greedy])

    def hidden(self, batch: Batch) -> np.ndarray:
        return np.array([self._logits(held)[: self.width] for held in self._rows(batch)], np.float32)

    def copy_page(self, source: int, target: int) -> None:
        self.pages[target] = self.pages[source]

    def close(self) -> None:
        self.closed = True

    def _rows(self, batch: Batch) -> list[np.ndarray]:
        """For each row what its sequence's pages hold, up to its own position."""
        self.steps += 1
        self.gate(batch)
        self.check()
        assert 0 < len(batch.tokens) <= self.max_tokens
        sequence = np.repeat(np.arange(len(batch.starts) - 1), np.diff(batch.starts))
        page = batch.block_tables[sequence, batch.positions // PAGE_TOKENS]
        slots = page * PAGE_TOKENS + batch.positions % PAGE_TOKENS
        assert len(set(slots.tolist())) == len(slots), "two tokens are written to one place"
        of_prompt = np.arange(len(batch.tokens)) < batch.prompt_tokens
        self.pages[page, batch.positions % PAGE_TOKENS] = batch.tokens + VOCAB * of_prompt
        held = []
        for row in batch.rows.tolist():
            end = int(batch.positions[row]) + 1
            table = batch.block_tables[sequence[row], : -(-end // PAGE_TOKENS)]
            held.append(self.pages[table].reshape(-1)[:end])
            assert (held[-1] >= 0).all(), "a position was never computed"
        return held

    @staticmethod
    def _logits(held: np.ndarray) -> np.ndarray:
        digest = hashlib.blake2b(held.tobytes(), digest_size=VOCAB).digest()
        logits = np.frombuffer(digest, np.uint8).astype(np.float32) / 16
        if digest[0] % 8 and len(held) >= 5:
            logits[held[-5] % VOCAB] = 20
        return logits


class Gate:
    """Holds an engine at the beginning of each step until it is let on."""

    def __init__(self, executor: DigestExecutor) -> None:
        self.batches: list[Batch] = []
        self._arrived, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self._open = False
        executor.gate = self._hold

    def _hold(self, batch: Batch) -> None:
        self.batches.append(replace(batch, tokens=batch.tokens.copy(), starts=batch.starts.copy()))
        if not self._open:
            self._arrived.release()
            self._go.acquire()

    def wait(self) -> Batch:
        """Wait until the engine is about to run a step; its batch."""
        assert self._arrived.acquire(timeout=20), "the engine does not come to its next step"
        return self.batches[-1]

    def step(self, count: int = 1) -> Batch:
        """Let it run `count` steps; it has to come to another one after them, whose batch this is."""
        for _ in range(count):
            self._go.release()
            self.wait()
        return self.batches[-1]

    def open(self) -> None:
        """Hold it no more."""
        self._open = True
        self._go.release()


@pytest.fixture
def alone() -> Callable[[list[int], int], tuple[int, ...]]:
    """alone(prompt, n) -> the n greedy tokens that follow a prompt when nothing else runs and nothing is kept."""

    def greedy(prompt: list[int], n: int) -> tuple[int, ...]:
        held = [token + VOCAB for token in prompt]
        for _ in range(n):
            held.append(int(DigestExecutor._logits(np.array(held, np.int32)).argmax()))
        return tuple(held[len(prompt) :])

    return greedy


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    """make(n_pages=, max_tokens=, gated=, **settings) -> an engine, closed at the end, with two attributes more: its
    `executor` and, when it is gated, the `gate` that holds it.

    Its pages are checked at every step, and all of them must be given back by the end.
    """
    engines = []

    def make(
        n_pages: int = 64,
        max_tokens: int = 64,
        gated: bool = False,
        metrics: LlmMetrics | None = None,
        tracer: Tracer | None = None,
        **settings: object,
    ) -> Engine:
        executor = DigestExecutor(n_pages, max_tokens)
        chosen = EngineSettings(**{"max_context": 512, "max_batch": 8, **settings})
        engine = Engine(executor, settings=chosen, name="digest", metrics=metrics, tracer=tracer)
        executor.check = engine._kv.check_integrity
        engine.executor, engine.gate = executor, Gate(executor) if gated else None
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        if engine.gate is not None:
            engine.gate.open()
        engine.close()
        engine._kv.check_integrity()
        assert engine._kv.pool.held == 0, "pages leaked"
