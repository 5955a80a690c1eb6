"""What ends early: cancelled, dropped, out of time, failed, closed; within a step, and with its pages back."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, DeadlineExceeded, StageFailed, Unavailable
from headrace.llm.engine import Engine
from headrace.llm.execution import Batch, Output
from headrace.llm.params import SamplingParams

Alone = Callable[[list[int], int], tuple[int, ...]]
MakeEngine = Callable[..., Engine]

PROMPT = [5, 9, 2, 7] * 9


def _params(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


def _sequences(batch: Batch) -> int:
    return len(batch.starts) - 1


def test_cancelling_ends_it_within_one_step_and_says_so(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(gated=True)
    kept, gone = engine.generate([1, *PROMPT], _params(40)), engine.generate([2, *PROMPT], _params(40))
    engine.gate.wait()
    assert _sequences(engine.gate.step(3)) == 2
    held = engine._kv.pool.held
    gone.cancel()
    gone.cancel()
    assert _sequences(engine.gate.step()) == 1
    assert engine._kv.pool.held < held
    chunks = list(gone)
    assert chunks[-1].finish_reason == "cancelled"
    tokens = sum((chunk.tokens for chunk in chunks), ())
    assert 0 < len(tokens) < 40
    assert tokens == alone([2, *PROMPT], len(tokens))
    assert chunks[-1].usage.completion_tokens == len(tokens)
    engine.gate.open()
    assert kept.collect()[0].tokens == alone([1, *PROMPT], 40)


@pytest.mark.parametrize("how", ["drop", "with", "break"])
def test_nobody_reads_any_more(make_engine: MakeEngine, how: str) -> None:
    engine = make_engine(gated=True)
    kept, gone = engine.generate([1, *PROMPT], _params(40)), engine.generate([2, *PROMPT], _params(40, n=2))
    engine.gate.wait()
    assert _sequences(engine.gate.step(3)) == 3
    if how == "with":
        with gone:
            pass
    elif how == "break":
        for _ in gone:
            break
    del gone
    gc.collect()
    assert _sequences(engine.gate.step()) == 1
    kept.cancel()


async def test_a_task_that_is_cancelled_drops_its_answer(make_engine: MakeEngine) -> None:
    engine = make_engine(gated=True)

    async def read() -> None:
        async for _ in engine.generate(PROMPT, _params(400)):
            pass

    task = asyncio.ensure_future(read())
    await asyncio.to_thread(engine.gate.wait)
    await asyncio.to_thread(engine.gate.step, 2)
    task.cancel()
    await asyncio.wait([task])
    del task
    gc.collect()
    engine.gate.open()
    await asyncio.to_thread(engine.generate([1], _params(1)).collect)
    assert engine._kv.pool.held == 0


def test_one_that_waits_can_be_cancelled_too(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=1, gated=True)
    running = engine.generate(PROMPT, _params(10))
    engine.gate.wait()
    waiting = engine.generate([1, *PROMPT], _params(10, n=2))
    waiting.cancel()
    engine.gate.open()
    assert [chunk.finish_reason for chunk in waiting.collect()] == ["cancelled", "cancelled"]
    assert running.collect()[0].finish_reason == "length"


def test_a_context_that_ends_takes_its_answer_along(make_engine: MakeEngine) -> None:
    engine = make_engine(gated=True)
    ctx = Context("r1")
    generation = engine.generate(PROMPT, _params(100), ctx=ctx)
    engine.gate.wait()
    engine.gate.step()
    ctx.cancel(Cancelled("the client went away"))
    engine.gate.open()
    with pytest.raises(Cancelled, match="the client went away"):
        generation.collect()
    assert not ctx._callbacks, "the engine forgets the context"


@pytest.mark.parametrize("max_batch", [1, 8])
def test_nothing_goes_on_past_its_deadline(make_engine: MakeEngine, max_batch: int) -> None:
    engine = make_engine(max_batch=max_batch, gated=True)
    kept = engine.generate(PROMPT, _params(30), ctx=Context(timeout_s=1000))
    engine.gate.wait()
    ctx = Context("late", timeout_s=1000)
    late = engine.generate([1, *PROMPT], _params(300), ctx=ctx)
    engine.gate.step(2)
    ctx.deadline_s = engine._loop._next_deadline_s = 0.0
    engine.gate.open()
    with pytest.raises(DeadlineExceeded, match="request late: deadline exceeded"):
        late.collect()
    assert kept.collect()[0].finish_reason == "length"


def test_a_deadline_in_the_future_ends_a_long_answer(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=2000, max_context=30_000)
    with pytest.raises(DeadlineExceeded):
        engine.generate(PROMPT, ctx=Context(timeout_s=0.05)).collect()


def test_a_model_that_fails_tells_everybody_and_the_engine_says_so_later(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=2, gated=True)
    generations = [engine.generate([i, *PROMPT], _params(50)) for i in range(4)]
    engine.gate.wait()

    def fail(_: Batch) -> Output:
        raise MemoryError("no room")

    engine.executor.step = fail
    engine.gate.open()
    for generation in generations:
        with pytest.raises(StageFailed, match=r"engine.*MemoryError: no room"):
            generation.collect()
    with pytest.raises(Unavailable, match="the engine failed and has to be loaded again: MemoryError: no room"):
        engine.generate(PROMPT)
    with pytest.raises(Unavailable):
        engine.logits([1, 2])


def test_numbers_that_are_none_end_one_answer_only(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(gated=True)
    good, bad = engine.generate([1, *PROMPT], _params(20)), engine.generate([2, *PROMPT], _params(20, n=2))
    engine.gate.wait()
    step = engine.executor.step

    def poisoned(batch: Batch) -> Output:
        output = step(batch)
        output.argmax[1:] = -1
        return output

    engine.executor.step = poisoned
    engine.gate.open()
    with pytest.raises(StageFailed, match="NaN"):
        bad.collect()
    assert good.collect()[0].tokens == alone([1, *PROMPT], 20)


def test_a_failing_writer_ends_one_answer_only(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(gated=True)
    good, bad = engine.generate([1, *PROMPT], _params(20)), engine.generate([2, *PROMPT], _params(20))
    engine.gate.wait()

    class Broken:
        def push(self, token: int) -> str:
            raise ValueError(f"what is {token}?")

    bad._request.writers[0]._stream = Broken()
    engine.gate.open()
    with pytest.raises(StageFailed, match="ValueError: what is"):
        bad.collect()
    assert good.collect()[0].tokens == alone([1, *PROMPT], 20)


def test_closing_ends_everything_and_frees_the_model(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=1, gated=True)
    generations = [engine.generate([i, *PROMPT], _params(300)) for i in range(3)]
    engine.gate.wait()
    closing = threading.Thread(target=engine.close)
    closing.start()
    while engine._loop.error is None:
        pass
    engine.gate.open()
    closing.join()
    for generation in generations:
        with pytest.raises(Unavailable, match="the engine was closed"):
            generation.collect()
    with pytest.raises(Unavailable, match="the engine is closed"):
        engine.generate(PROMPT)
    assert engine.executor.closed
    engine.close()


def test_draining_lets_what_runs_come_to_its_end(make_engine: MakeEngine, alone: Alone) -> None:
    with make_engine(max_batch=1) as engine:
        generations = [engine.generate([i, *PROMPT], _params(30)) for i in range(3)]
        engine.close(drain_s=60)
        assert [g.collect()[0].tokens for g in generations] == [alone([i, *PROMPT], 30) for i in range(3)]


def test_callers_that_race_with_closing_get_an_answer_or_an_error(make_engine: MakeEngine) -> None:
    for _ in range(20):
        engine = make_engine()
        outcomes: list[str] = []

        def call(engine: Engine = engine, outcomes: list[str] = outcomes) -> None:
            while True:
                try:
                    engine.generate([1], _params(1)).collect()
                except Unavailable as error:
                    outcomes.append(str(error))
                    return

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        engine.close()
        for caller in callers:
            caller.join(timeout=20)
            assert not caller.is_alive(), "somebody waits for ever"
        assert len(outcomes) == 4


def test_a_forked_child_is_told_that_the_engine_is_not_there(make_engine: MakeEngine) -> None:
    engine = make_engine()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.generate(PROMPT)
        except Unavailable as error:
            os.write(writer, str(error).encode())
        engine.close()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(child, 0)
    assert "was forked" in told
    assert str(os.getpid()) in told
    assert engine.generate(PROMPT, _params(2)).collect()[0].finish_reason == "length"
