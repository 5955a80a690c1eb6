"""What is refused, with which words, and that nothing is left behind by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, ConfigError, InvalidInput, Overloaded
from headrace.llm.engine import Engine
from headrace.llm.params import Grammar, SamplingParams
from headrace.llm.settings import EngineSettings, page_count

Alone = Callable[[list[int], int], tuple[int, ...]]
MakeEngine = Callable[..., Engine]

PROMPT = [5, 9, 2, 7] * 9


def _params(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "at least one token, got none"),
        ("text", "no tokenizer; expected token ids"),
        ([{"role": "user", "content": "hi"}], "no chat template"),
        ([1, 64], "ids below 64, got 64"),
        ([1, -1], "ids below 64, got -1"),
        ([1.5, 2], r"expected a text, token ids or messages, got \[1.5, 2\]"),
        (["a", "b"], "expected a text, token ids or messages"),
        ([[1], [2, 3]], "expected a text, token ids or messages"),
        ([True, False], "expected a text, token ids or messages"),
        (None, "expected a text, token ids or messages, got None"),
        (7, "expected a text, token ids or messages, got 7"),
        ([2**70], "expected"),
    ],
)
def test_prompts_that_cannot_be(make_engine: MakeEngine, prompt: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make_engine().generate(prompt)


def test_ids_may_come_as_an_array(make_engine: MakeEngine, alone: Alone) -> None:
    answer = make_engine().generate(np.array(PROMPT, np.int64), _params(5)).collect()[0]
    assert answer.tokens == alone(PROMPT, 5)


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(make_engine: MakeEngine) -> None:
    engine = make_engine(max_context=64)
    with pytest.raises(InvalidInput, match=r"60 tokens and an answer of 10 .* context of 64; .* at most 54 tokens"):
        engine.generate([1] * 60, _params(10))
    with pytest.raises(InvalidInput, match=r"at most 63, .* context of 64 tokens; got 64"):
        engine.generate([1], _params(64))
    with pytest.raises(InvalidInput, match="64 tokens and an answer of 1 "):
        engine.generate([1] * 64)


def test_the_context_is_no_longer_than_the_pages(make_engine: MakeEngine) -> None:
    engine = make_engine(n_pages=3, max_context=1000)
    assert engine.settings.max_context == 48
    assert len(engine.generate([1] * 40).collect()[0].tokens) == 8, "without max_tokens: as far as the context goes"
    with pytest.raises(InvalidInput, match="context of 48"):
        engine.generate([1] * 48)


def test_truncation_only_when_asked_and_then_told(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(max_context=64)
    prompt = [i % 64 for i in range(100)]
    generation = engine.generate(prompt, _params(10), truncate=True)
    assert generation.truncated_tokens == 46
    assert generation.prompt_tokens == 54
    assert generation.collect()[0].tokens == alone(prompt[46:], 10)
    assert engine.generate([1, 2], _params(10), truncate=True).truncated_tokens == 0


def test_parameters_are_checked_before_anything_runs(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for params in (_params(0), _params(5, temperature=float("nan")), _params(5, stop_token_ids=(64,)), _params(5, n=0)):
        with pytest.raises(InvalidInput):
            engine.generate(PROMPT, params)
    with pytest.raises(InvalidInput, match="no tokenizer"):
        engine.generate(PROMPT, _params(5, grammar=Grammar("regex", "a+")))
    assert engine.executor.steps == 0


def test_a_context_that_has_ended_starts_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ctx = Context()
    ctx.cancel()
    with pytest.raises(Cancelled):
        engine.generate(PROMPT, _params(5), ctx=ctx)
    assert engine.executor.steps == 0


def test_a_full_queue_refuses_the_newcomer_and_nobody_else(make_engine: MakeEngine, alone: Alone) -> None:
    engine = make_engine(max_batch=1, max_queue=3, gated=True)
    running = engine.generate([0, *PROMPT], _params(20))
    engine.gate.wait()
    queued = [engine.generate([i, *PROMPT], _params(20)) for i in range(1, 4)]
    with pytest.raises(Overloaded, match="3 answers are waiting already; at most 3 may") as caught:
        engine.generate(PROMPT, _params(20))
    assert caught.value.http_status == 429
    engine.gate.open()
    assert [g.collect()[0].tokens for g in (running, *queued)] == [alone([i, *PROMPT], 20) for i in range(4)]
    engine.generate(PROMPT, _params(1)).collect()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_context": 1}, "max_context: expected a whole number from 2 to .*, got 1"),
        ({"max_batch": 0}, "max_batch: expected a whole number from 1 to .*, got 0"),
        ({"max_batch": 2.5}, "max_batch: expected a whole number from 1 to .*, got 2.5"),
        ({"max_queue": 0}, "max_queue: expected a whole number from 1 to"),
        ({"step_tokens": 10**9}, "step_tokens: expected a whole number from 1 to 65536, got 1000000000"),
        ({"step_tokens": "9"}, "step_tokens: expected a whole number from 1 to 65536, got '9'"),
        ({"max_batch": 65, "step_tokens": 64}, "max_batch: expected at most step_tokens, 64, got 65"),
        ({"slack": -0.1}, "slack: expected a number from 0 to"),
        ({"slack": float("nan")}, "slack: expected a number from 0 to .*, got nan"),
        ({"policy": "mru"}, "policy: expected one of"),
    ],
)
def test_settings_that_cannot_be_name_themselves(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineSettings(**{"max_context": 64, **settings})


def test_how_many_pages() -> None:
    assert page_count(1000, 64, 4, kv_bytes=9999) == 9
    with pytest.raises(ConfigError, match="at least one page of 1000 bytes, got 999"):
        page_count(1000, 64, 4, kv_bytes=999)
    assert page_count(1000, 64, 4, kv_bytes=None) == 16, "enough for every answer"
    assert page_count(1 << 31, 64, 4, kv_bytes=None) == 4, "never less than one context"
