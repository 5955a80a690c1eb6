"""Many answers over few pages and one budget: what is shared, who goes first, who is held up and by how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import InvalidInput, Unavailable
from headrace.llm.engine import Engine
from headrace.llm.params import SamplingParams

Alone = Callable[[list[int], int], tuple[int, ...]]
MakeEngine = Callable[..., Engine]

PROMPT = [5, 9, 2, 7] * 9


def _params(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


def test_a_prompt_is_found_while_the_one_that_brought_it_still_runs(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(gated=True)
    first = engine.generate(PROMPT, _params(60))
    engine.gate.wait()
    engine.gate.step(2)
    second = engine.generate([*PROMPT, 1], _params(3))
    engine.gate.open()
    (chunk,) = second.collect()
    assert chunk.usage is not None
    assert chunk.usage.cached_tokens == 32
    assert chunk.tokens == alone([*PROMPT, 1], 3)
    assert first.collect()[0].tokens == alone(PROMPT, 60)


def test_answers_to_one_prompt_share_its_pages(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(gated=True)
    generation = engine.generate([1] * 100, _params(2, n=8))
    engine.gate.wait()
    engine.gate.step(2)
    assert engine._kv.pool.held == 7 + 7, "each has a copy of the partly filled page, no more"
    engine.gate.open()
    assert [chunk.tokens for chunk in generation.collect()] == [alone([1] * 100, 2)] * 8


def test_more_answers_than_fit_at_once_take_turns(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(max_batch=3)
    assert [chunk.tokens for chunk in engine.generate(PROMPT, _params(20, n=9)).collect()] == [alone(PROMPT, 20)] * 9


def test_nobody_dies_when_pages_run_out(make_engine: MakeEngine, alone: Alone) -> None:
    """All of them grow beyond what fits together; they give way and go on, and nobody notices."""
    engine = make_engine(n_pages=12, max_context=192)
    prompts = [[i] * 20 for i in range(6)]
    generations = [engine.generate(prompt, _params(100)) for prompt in prompts]
    assert [g.collect()[0].tokens for g in generations] == [alone(prompt, 100) for prompt in prompts]
    assert engine._loop._scheduler.preemptions > 0


def test_the_first_in_line_is_never_preempted(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=12, max_context=192)
    generations = [engine.generate([i] * 20, _params(100)) for i in range(6)]
    preempted = []
    preempt = engine._loop._scheduler._preempt
    engine._loop._scheduler._preempt = lambda answer: (preempted.append(answer.request.arrival), preempt(answer))
    order = [generation.collect()[0].finish_reason for generation in generations]
    assert order == ["length"] * 6
    assert 0 not in preempted
    assert preempted


def test_streams_run_in_every_step_of_anothers_long_prompt(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(n_pages=200, max_context=3000, max_tokens=512, step_tokens=512, gated=True)
    streams = [engine.generate([i], _params(100)) for i in range(5)]
    engine.gate.wait()
    engine.gate.step(3)
    long = engine.generate(list(range(60)) * 40, _params(2))
    batches = []
    for _ in range(30):
        batch = engine.gate.step()
        batches.append(np.diff(batch.starts).tolist())
    beside = [lengths for lengths in batches if len(lengths) == 6]
    assert len(beside) >= 5, "2,400 tokens take five steps of 512 or more: how many depends on the time steps take"
    assert all(sorted(lengths)[:5] == [1] * 5 for lengths in beside), "every stream gets its token"
    assert all(lengths[5] <= 512 for lengths in beside)
    engine.gate.open()
    assert long.collect()[0].tokens == alone(list(range(60)) * 40, 2)
    for i, stream in enumerate(streams):
        assert stream.collect()[0].tokens == alone([i], 100)


def test_a_short_prompt_passes_a_long_one(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=200, max_context=3000, step_tokens=32, gated=True)
    long = engine.generate([1] * 2500, _params(1))
    engine.gate.wait()
    short = engine.generate([2] * 20, _params(1))
    engine.gate.step(4)
    assert short.collect()[0].finish_reason == "length"
    assert not long._inbox._chunks
    long.cancel()


def test_higher_priority_goes_first_and_pushes_out_lower(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(max_batch=1, gated=True)
    low = engine.generate(PROMPT, _params(40))
    engine.gate.wait()
    engine.gate.step(3)
    high = engine.generate([1, 2, 3], _params(5), ctx=Context(priority=1))
    batch = engine.gate.step()
    assert batch.tokens.tolist() == [1, 2, 3], "it runs at once, though there was no slot"
    engine.gate.open()
    assert high.collect()[0].tokens == alone([1, 2, 3], 5)
    assert low.collect()[0].tokens == alone(PROMPT, 40)
    assert engine._loop._scheduler.preemptions == 1


def test_a_tenant_with_one_request_does_not_wait_for_anothers_many(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=1, gated=True)
    many = [engine.generate([1, i], _params(4), ctx=Context(tenant="many")) for i in range(20)]
    engine.gate.wait()
    one = engine.generate([2], _params(1), ctx=Context(tenant="one"))
    steps = 0
    while engine.gate.step().tokens.tolist() != [2]:
        steps += 1
    assert steps <= 4, "it is next when the one that ran has ended"
    engine.gate.open()
    assert one.collect()[0].finish_reason == "length"
    for generation in many:
        generation.cancel()


def test_guessing_saves_steps_and_changes_nothing(make_engine: MakeEngine, alone: Alone) -> None:
    steps = {}
    for lookup in (0, 4):
        engine = make_engine(n_pages=100, max_context=900)
        assert engine.generate([1, 2, 3, 4, 5] * 10, _params(400, lookup=lookup)).collect()[0].tokens == alone(
            [1, 2, 3, 4, 5] * 10, 400
        )
        steps[lookup] = engine.executor.steps
    assert steps[4] < 0.6 * steps[0], steps


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guesses_change_no_draw_either(make_engine: MakeEngine, temperature: float) -> None:
    engine = make_engine(n_pages=100, max_context=900)
    answers = [
        engine.generate(PROMPT, _params(200, lookup=lookup, temperature=temperature, seed=5, n=2)).collect()
        for lookup in (0, 5)
    ]
    assert [chunk.tokens for chunk in answers[0]] == [chunk.tokens for chunk in answers[1]]


def test_a_stop_token_ends_it_wherever_it_comes(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine()
    tokens = alone(PROMPT, 60)
    stop = tokens[20]
    for lookup in (0, 5):
        (chunk,) = engine.generate(PROMPT, _params(60, stop_token_ids=(stop,), lookup=lookup)).collect()
        assert chunk.tokens == tokens[: tokens.index(stop)]
        assert chunk.finish_reason == "stop"
        assert chunk.usage is not None
        assert chunk.usage.completion_tokens == len(chunk.tokens) + 1, "the one that ended it was generated too"


# -- whole texts -------------------------------------------------------------------------------------------------------


def test_logits_and_embeddings_while_answers_run(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(n_pages=80)
    streams = [engine.generate([i, *PROMPT], _params(100)) for i in range(4)]
    text = list(range(64)) * 3
    logits = engine.logits(text)
    assert logits.shape == (192, 64)
    assert logits.dtype == np.float32
    for i in (0, 15, 16, 100, 191):
        held = np.array(text[: i + 1], np.int32) + engine.executor.vocab_size  # of a prompt
        np.testing.assert_array_equal(logits[i], engine.executor._logits(held))
    vectors = engine.embed([[1, 2, 3], text, [4]])
    assert vectors.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    mean = logits[:, :8].mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(vectors[1], mean / np.linalg.norm(mean), rtol=1e-5)
    assert [g.collect()[0].tokens for g in streams] == [alone([i, *PROMPT], 100) for i in range(4)]


def test_many_texts_of_any_length_have_the_vectors_they_have_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=20, step_tokens=33)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 64, rng.integers(1, 80)).tolist() for _ in range(40)]
    together = engine.embed(texts)
    np.testing.assert_array_equal(together, np.concatenate([engine.embed([text]) for text in texts]))
    assert engine.embed([]).shape == (0, 8)


def test_texts_that_cannot_be(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=4)
    for call in (lambda: engine.logits([]), lambda: engine.logits([64]), lambda: engine.embed([[1], []])):
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(InvalidInput, match="65 tokens do not fit the context of 64"):
        engine.logits([1] * 65)
    engine.close()
    with pytest.raises(Unavailable):
        engine.embed([[1]])
