"""What nobody waits for, holds, or may read: passes over texts, engines dropped, second readers, forked children."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, InvalidInput, Overloaded, Unavailable
from headrace.llm.engine import Engine
from headrace.llm.generation import Generation
from headrace.llm.params import SamplingParams
from headrace.llm.settings import EngineSettings

MakeEngine = Callable[..., Engine]

PROMPT = [5, 9, 2, 7] * 9


def _params(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


def test_an_answer_cannot_be_read_in_a_forked_child(make_engine: MakeEngine) -> None:
    engine = make_engine()
    generation = engine.generate(PROMPT, _params(50))
    child = os.fork()
    if child == 0:
        try:
            next(generation)
        except Unavailable:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert generation.collect()[0].finish_reason == "length"


def test_an_engine_that_nobody_holds_is_freed(make_engine: MakeEngine) -> None:
    executor = type(make_engine().executor)

    def started() -> Generation:
        engine = Engine(executor(64, 64), settings=EngineSettings(max_context=512))
        return engine.generate(PROMPT, _params(30))

    before = threading.active_count()
    generation = started()
    gc.collect()
    assert generation.collect()[0].finish_reason == "length", "whoever reads an answer keeps its engine"
    del generation
    gc.collect()
    deadline_s = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_second_reader_is_told_and_the_first_goes_on(make_engine: MakeEngine) -> None:
    engine = make_engine(gated=True)
    generation = engine.generate(PROMPT, _params(5))
    engine.gate.wait()
    tokens: list[int] = []
    first = threading.Thread(target=lambda: tokens.extend(generation.collect()[0].tokens))
    first.start()
    while generation._inbox._sleeper is None:
        time.sleep(0.001)
    with pytest.raises(InvalidInput, match="one reader at a time"):
        generation.collect()
    engine.gate.open()
    first.join(20)
    assert len(tokens) == 5


async def test_a_reader_that_gave_up_may_come_back(make_engine: MakeEngine) -> None:
    engine = make_engine(gated=True)
    generation = engine.generate(PROMPT, _params(5))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(generation), 0.05)
    engine.gate.open()
    assert len((await generation.acollect())[0].tokens) == 5


def test_passes_over_texts_end_with_their_context(make_engine: MakeEngine) -> None:
    engine = make_engine(gated=True)
    blocker = engine.generate(PROMPT, _params(3))
    engine.gate.wait()
    ctx = Context()
    outcome: list[BaseException] = []

    def embed() -> None:
        try:
            engine.embed([[1] * 500] * 100, ctx=ctx)
        except Cancelled as error:
            outcome.append(error)

    caller = threading.Thread(target=embed)
    caller.start()
    while not engine._loop._probes:
        time.sleep(0.001)
    ctx.cancel()
    engine.gate.open()
    caller.join(20)
    assert outcome
    assert engine.executor.steps < 20, "nothing is computed for nobody"
    blocker.collect()


async def test_a_cancelled_task_ends_its_pass_over_texts(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=40)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.aembed([[1] * 500] * 10_000), 0.1)
    steps = engine.executor.steps
    assert (await engine.aembed([[1, 2]])).shape == (1, 8)
    assert engine.executor.steps < steps + 10


def test_passes_over_texts_wait_in_the_same_queue(make_engine: MakeEngine) -> None:
    engine = make_engine(gated=True, max_batch=1, max_queue=2)
    running = engine.generate(PROMPT, _params(3))
    engine.gate.wait()
    waiting = engine.generate(PROMPT, _params(3, n=2))
    with pytest.raises(Overloaded, match="2 answers are waiting already; at most 2 may"):
        engine.embed([[1]])
    with pytest.raises(InvalidInput, match="4 answers at once: expected at most 3"):
        engine.generate(PROMPT, _params(3, n=4))
    engine.gate.open()
    running.collect()
    waiting.collect()
    assert engine.embed([[1]]).shape == (1, 8)
