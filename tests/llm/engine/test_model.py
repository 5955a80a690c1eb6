"""The engine around a real, tiny model: text, chat, log-probabilities, and the same bits whatever else runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace._native import supported_isas
from headrace.errors import ConfigError, InvalidInput, LoadFailed
from headrace.llm.engine import Engine
from headrace.llm.evaluate import divergence, windows
from headrace.llm.kernels import NativeExecutor, packed_size
from headrace.llm.loader import load_model
from headrace.llm.params import Grammar, SamplingParams, Usage
from headrace.llm.reference import ReferenceExecutor
from headrace.llm.settings import EngineSettings
from headrace.testing.language import save_language_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with Engine.load(model, threads=2) as engine:
        yield engine
        engine._kv.check_integrity()


def _texts(engine: Engine, prompts: list[str], **params: object) -> list[str]:
    generations = [engine.generate(prompt, SamplingParams(**params)) for prompt in prompts]
    return [generation.collect()[0].text for generation in generations]


def test_pieces_of_text_add_up(engine: Engine) -> None:
    generation = engine.generate("once upon a time", SamplingParams(max_tokens=40))
    chunks = list(generation)
    text = "".join(chunk.text for chunk in chunks)
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert engine.tokenizer is not None
    assert text == engine.tokenizer.decode(tokens)
    assert len(tokens) == 40
    assert chunks[-1].usage == Usage(generation.prompt_tokens, 0, 40)


def test_a_stop_text_is_not_part_of_the_answer(engine: Engine) -> None:
    (text,) = _texts(engine, ["once"], max_tokens=40)
    stop = text[7:9]
    generation = engine.generate("once", SamplingParams(max_tokens=40, stop=(stop,)))
    (chunk,) = generation.collect()
    assert chunk.text == text[: text.index(stop)]
    assert chunk.finish_reason == "stop"


def test_messages_are_written_as_the_model_wants_them(engine: Engine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert engine.chat is not None
    generation = engine.generate(messages, SamplingParams(max_tokens=5))
    assert generation.prompt_tokens == len(engine.chat.encode(messages))
    assert generation.collect()[0].finish_reason == "length"
    with pytest.raises(InvalidInput, match="role"):
        engine.generate([{"role": "king", "content": "hi"}])


def test_log_probabilities_come_with_their_tokens(engine: Engine) -> None:
    generation = engine.generate("once upon", SamplingParams(max_tokens=12, logprobs=3, lookup=4))
    (chunk,) = generation.collect()
    assert [entry.token for entry in chunk.logprobs] == list(chunk.tokens)
    assert "".join(entry.text.decode() for entry in chunk.logprobs) == chunk.text
    assert engine.tokenizer is not None
    logits = engine.logits([*engine.tokenizer.encode("once upon"), *chunk.tokens]).astype(np.float64)
    rows = logits[-1 - len(chunk.tokens) : -1]
    expected = (
        rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) - rows.max(1, keepdims=True)
    )
    for entry, row in zip(chunk.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token], abs=0.1)  # prompts may be rounded otherwise
        assert [token for token, _, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()
    assert not engine.generate("once", SamplingParams(max_tokens=2, temperature=1)).collect()[0].logprobs


def test_an_answer_that_has_to_match_does(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    grammar = Grammar("json_schema", json.dumps(schema))
    answers = engine.generate(
        "go", SamplingParams(max_tokens=60, grammar=grammar, temperature=1.0, seed=1, n=3)
    ).collect()
    for chunk in answers:
        if chunk.finish_reason == "stop":
            assert set(json.loads(chunk.text)) == {"n"}
    assert any(chunk.finish_reason == "stop" for chunk in answers)


def test_a_request_gets_the_same_answer_whatever_else_runs(model: Path) -> None:
    """Few pages, small steps, many at once: batches, chunks, reuse and preemption change no bit."""
    rng = random.Random(0)
    words = ["once", "upon", "a", "time", "there", "was", "river"]
    prompts = [" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(40)]
    options = {"max_tokens": 60, "lookup": 3}
    with Engine.load(model, threads=2) as calm:
        alone = [_texts(calm, [prompt], **options)[0] for prompt in prompts]
        drawn = [_texts(calm, [prompt], max_tokens=60, temperature=1.0, seed=7)[0] for prompt in prompts[:8]]
    with Engine.load(model, threads=1, n_pages=14, max_batch=7, step_tokens=19, kv_type="f16") as busy:
        assert _texts(busy, prompts, **options) == alone
        assert _texts(busy, prompts[:8], max_tokens=60, temperature=1.0, seed=7) == drawn
        assert busy._loop._scheduler.preemptions > 0
        assert busy._kv.pool.held == 0


@pytest.mark.parametrize("isa", [isa for isa in supported_isas() if isa != "scalar"][-2:])
def test_the_next_turn_finds_what_was_computed_as_it_would_be(model: Path, isa: str) -> None:
    """Where prompts and answers are computed alike, an answer's pages serve as a prompt's; else those of the prompt."""
    with Engine.load(model, threads=1, isa=isa) as engine, Engine.load(model, threads=1, isa=isa) as cold:
        assert engine.tokenizer is not None
        prompt = engine.tokenizer.encode("once upon a time there was")
        (said,) = engine.generate(prompt, SamplingParams(max_tokens=60)).collect()
        turn = [*prompt, *said.tokens, *engine.tokenizer.encode(" and then")]
        (found,) = engine.generate(turn, SamplingParams(max_tokens=30)).collect()
        assert found.usage is not None
        reusable = len(prompt) if isa == "amx" else len(prompt) + 59
        assert found.usage.cached_tokens == reusable // 16 * 16
        (alone,) = cold.generate(turn, SamplingParams(max_tokens=30)).collect()
        assert alone.usage is not None
        assert alone.usage.cached_tokens == 0
        assert alone.tokens == found.tokens
        np.testing.assert_array_equal(cold.logits(turn), engine.logits(turn))


def test_the_reference_gives_the_same_text_whatever_else_runs(model: Path) -> None:
    checkpoint, config, trace = load_model(model)
    prompts = [[(7 * i + j) % 90 + 33 for j in range(5 + i)] for i in range(8)]
    answers = []
    for n_pages, step_tokens, together in ((64, 512, False), (10, 11, True)):
        executor = ReferenceExecutor(trace, checkpoint, n_pages=n_pages, max_tokens=step_tokens, invariant=True)
        settings = EngineSettings(max_context=config.context_length, max_batch=5, step_tokens=step_tokens)
        with Engine(executor, settings=settings) as engine:
            params = SamplingParams(max_tokens=16)
            if together:
                generations = [engine.generate(prompt, params) for prompt in prompts]
                answers.append([generation.collect()[0].tokens for generation in generations])
            else:
                answers.append([engine.generate(prompt, params).collect()[0].tokens for prompt in prompts])
    assert answers[0] == answers[1]
    checkpoint.close()


def test_float_weights_of_4_bits_take_less_and_stay_close(tmp_path: Path) -> None:
    path = save_language_model(tmp_path / "floats.gguf", kind="F16")
    checkpoint, _, trace = load_model(path)
    assert packed_size(trace, checkpoint, 4) < 0.6 * packed_size(trace, checkpoint, 8)
    cut = windows([(7 * i) % 90 + 33 for i in range(200)], 100)
    exact = ReferenceExecutor(trace, checkpoint, n_pages=7)
    kl = {}
    for weight_bits in (8, 4):
        rounded = NativeExecutor(trace, checkpoint, n_pages=7, threads=1, weight_bits=weight_bits)
        kl[weight_bits] = divergence(rounded, exact, cut).mean_kl
        rounded.close()
    checkpoint.close()
    assert 0 < kl[8] < kl[4] / 10 < 0.05
    with Engine.load(path, weight_bits=4) as four, Engine.load(path) as eight:
        assert not np.array_equal(four.logits([65, 66]), eight.logits([65, 66]))
    with pytest.raises(InvalidInput, match="weight_bits: expected 4 or 8, got 3"):
        Engine.load(path, weight_bits=3)


def test_weights_that_are_quantised_in_the_file_keep_their_codes(engine: Engine, model: Path) -> None:
    with Engine.load(model, weight_bits=4) as four:
        np.testing.assert_array_equal(four.logits([65, 66]), engine.logits([65, 66]))


def test_files_that_are_no_models(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(LoadFailed, match=r"no\.gguf"):
        Engine.load(path)
    with pytest.raises(ConfigError, match="policy"):
        Engine.load(model, policy="mru")
    with pytest.raises(InvalidInput, match="context"):
        Engine.load(model, max_context=1 << 20)


def test_a_text_that_cannot_fit_is_refused_before_it_is_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    encode = type(engine.tokenizer).encode
    monkeypatch.setattr(
        type(engine.tokenizer),
        "encode",
        lambda self, text, **how: (read.append(len(text)), encode(self, text, **how))[1],
    )
    endless = "a" * 3_000_000
    for call in (
        lambda: engine.generate(endless),
        lambda: engine.embed([endless]),
        lambda: engine.generate([{"role": "user", "content": endless}]),
    ):
        with pytest.raises(InvalidInput, match="a text of 3000000 bytes cannot fit the context of"):
            call()
    assert sum(read) < 1000
    with engine.generate(endless, SamplingParams(max_tokens=1), truncate=True) as generation:
        assert generation.truncated_tokens > 0
    assert sum(read) < 200_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": -1}, "threads: expected a whole number from 1 to 1024, got -1"),
        ({"threads": "2"}, "threads: expected a whole number from 1 to 1024, got '2'"),
        ({"n_pages": 1.5}, "n_pages: expected a whole number from 1"),
        ({"kv_bytes": 10**30}, "kv_bytes: expected a whole number from 1"),
        ({"isa": "mmx"}, "isa or HEADRACE_ISA: 'mmx'"),
    ],
)
def test_loading_names_the_setting_that_cannot_be(model: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Engine.load(model, **options)


def test_one_text_is_no_list_of_texts(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="expected a list of texts, got a text"):
        engine.embed("once")
    with pytest.raises(InvalidInput, match="params: expected SamplingParams, got dict"):
        engine.generate("once", {"max_tokens": 4})  # type: ignore[arg-type]
