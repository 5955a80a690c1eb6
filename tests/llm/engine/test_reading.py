"""Chunks on their way to readers in threads and event loops, quick ones and slow ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.llm import inbox
from headrace.llm.engine import Engine
from headrace.llm.inbox import Inbox, merge
from headrace.llm.params import Chunk, SamplingParams, Usage

Alone = Callable[[list[int], int], tuple[int, ...]]
MakeEngine = Callable[..., Engine]

PROMPT = [5, 9, 2, 7] * 9


def _params(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


def test_chunks_come_one_by_one_and_the_last_tells_why_and_how_much(make_engine: MakeEngine, alone: Alone) -> None:
    generation = make_engine().generate(PROMPT, _params(9))
    chunks = list(generation)
    assert sum((chunk.tokens for chunk in chunks), ()) == alone(PROMPT, 9)
    assert [chunk.finish_reason for chunk in chunks] == [""] * (len(chunks) - 1) + ["length"]
    assert chunks[-1].usage == Usage(36, 0, 9)
    assert generation.prompt_tokens == 36
    assert list(generation) == [], "and then nothing"


async def test_a_loop_reads_many_answers_and_is_woken_once_a_step(
    make_engine: MakeEngine, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    wake = inbox._open
    monkeypatch.setattr(inbox, "_open", lambda waiters: (woken.append(len(waiters)), wake(waiters)))
    engine = make_engine(gated=True)
    prompts = [[i, *PROMPT] for i in range(8)]
    reading = [asyncio.ensure_future(engine.generate(prompt, _params(30)).acollect()) for prompt in prompts]
    await asyncio.sleep(0)  # all of them have begun to wait
    engine.gate.open()
    answers = await asyncio.gather(*reading)
    assert [chunk.tokens for (chunk,) in answers] == [alone(prompt, 30) for prompt in prompts]
    assert 0 < len(woken) <= engine.executor.steps
    assert max(woken) > 1, "several readers are woken by one call"


def test_two_loops_and_a_thread_read_at_once(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine()
    answers: dict[int, tuple[int, ...]] = {}

    async def read(i: int) -> None:
        async with engine.generate([i, *PROMPT], _params(20)) as generation:
            answers[i] = sum([chunk.tokens async for chunk in generation], ())

    threads = [threading.Thread(target=asyncio.run, args=(read(i),)) for i in range(2)]
    for thread in threads:
        thread.start()
    answers[2] = engine.generate([2, *PROMPT], _params(20)).collect()[0].tokens
    for thread in threads:
        thread.join()
    assert answers == {i: alone([i, *PROMPT], 20) for i in range(3)}


def test_what_a_slow_reader_has_not_read_becomes_one_chunk(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine()
    slow = engine.generate(PROMPT, _params(200))
    while not slow._inbox.ended:
        engine.generate([1], _params(1)).collect()
    assert len(slow._inbox._chunks) <= 2 * inbox.MERGE_AT, "unread chunks pile up"
    (chunk,) = slow
    assert chunk.tokens == alone(PROMPT, 200)
    assert chunk.finish_reason == "length"


def test_a_reader_of_several_answers_keeps_them_apart(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = _params(60, n=3, temperature=1.0, seed=4)
    first = engine.generate(PROMPT, params).collect()
    assert [chunk.index for chunk in first] == [0, 1, 2]
    assert len({chunk.tokens for chunk in first}) == 3
    read: dict[int, tuple[int, ...]] = {}
    for chunk in engine.generate(PROMPT, params):
        read[chunk.index] = read.get(chunk.index, ()) + chunk.tokens
    assert read == {chunk.index: chunk.tokens for chunk in first}, "the same seed, the same answers"


def test_merging_joins_text_tokens_and_the_end() -> None:
    usage = Usage(1, 0, 3)
    chunks = [
        Chunk("a", (1,), 0),
        Chunk("x", (7,), 1),
        Chunk("", (2,), 0),
        Chunk("b", (3,), 0, "stop", (), usage),
    ]
    assert merge(chunks) == [Chunk("ab", (1, 2, 3), 0, "stop", (), usage), Chunk("x", (7,), 1)]


def test_a_loop_that_is_gone_disturbs_nobody(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(gated=True)
    abandoned = []

    async def begin() -> None:
        abandoned.append(engine.generate(PROMPT, _params(50)))
        reading = asyncio.ensure_future(anext(abandoned[0]))
        await asyncio.sleep(0)
        reading.cancel()

    engine_answers = engine.generate([3, *PROMPT], _params(30))
    asyncio.run(begin())
    engine.gate.open()
    assert engine_answers.collect()[0].tokens == alone([3, *PROMPT], 30)
    assert abandoned[0].collect()[0].tokens == alone(PROMPT, 50), "it can still be read, by a thread"


def test_an_inbox_that_has_ended_says_so_only_after_its_last_chunk() -> None:
    box = Inbox(1)
    box.put(Chunk("a", (1,), 0, "stop"))
    assert box.take(None) == [Chunk("a", (1,), 0, "stop")]
    assert box.take(None) is None
