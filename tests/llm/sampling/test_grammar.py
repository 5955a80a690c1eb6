"""Whatever is drawn under a grammar matches it, in any vocabulary; what cannot match is refused before it is drawn."""

from __future__ import annotations

import json
import re
import threading
import unicodedata

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput, MissingExtra
from headrace.llm import grammar as grammar_module
from headrace.llm.grammar import GrammarFactory
from headrace.llm.params import Grammar, SamplingParams
from headrace.llm.sampler import Sampler, sample_drafts, sample_rows

WORDS = [b'{"', b'":', b'",', b'"}', b"true", b"false", b"null", b"name", b"ab", b"abc", b"bc", b"12", b"  ", b"\r\n"]
TOKENS = [bytes([i]) for i in range(256)] + WORDS + [b"<eos>", b"<end>", b"<mark>", b""]
EOS, END, MARK, EMPTY = range(len(TOKENS) - 4, len(TOKENS))
VOCAB = len(TOKENS)


@pytest.fixture(scope="module")
def factory():
    return GrammarFactory(TOKENS.__getitem__, VOCAB, special_ids=[EOS, END, MARK], eos_ids=[EOS, END])


def allowed(matcher):
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[:VOCAB]
    return np.flatnonzero(bits).tolist()


def walk(matcher, noise, limit=300):
    """Draw tokens among the allowed, ends first after a while; returns the text, or None when it grew too long."""
    rng = np.random.default_rng(noise)
    text = b""
    for step in range(limit):
        tokens = allowed(matcher)
        assert tokens, "nothing may follow, not even an end"
        ends = [token for token in tokens if token in {EOS, END}]
        if ends and (step > 30 or rng.random() < 0.3 or len(ends) == len(tokens)):
            assert set(ends) == {EOS, END}
            matcher.accept(int(rng.choice(ends)))
            assert matcher.finished
            return text.decode()
        going = [token for token in tokens if token not in {EOS, END}]
        # Closing what is open ends the walk; a byte of a string would go on for ever.
        closing = [token for token in going if TOKENS[token][:1] in {b'"', b"}", b"]"}]
        token = int(rng.choice(closing if step > 60 and closing else going))
        assert token not in {MARK, EMPTY}
        text += TOKENS[token]
        matcher.accept(token)
    return None


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    noise=st.integers(0, 2**32 - 1),
    pattern=st.sampled_from(
        [r"a+b", r"(ab|abc)*", r"[a-c]{2,5}\d\d?", r"(true|false|null)", r"", r"a?(bc){0,3}\n?", r"[^a]x", r"é|ü\d"]
    ),
)
def test_regular_expressions_are_matched_in_full(noise, pattern, factory):
    text = walk(factory.matcher(Grammar("regex", pattern)), noise)
    if text is not None and "Cn" not in map(unicodedata.category, text):  # digits newer than this Python's Unicode
        assert re.fullmatch(pattern, text)


def test_a_mask_allows_every_way_to_spell_what_may_come(factory):
    matcher = factory.matcher(Grammar("regex", "abc|abd|bc"))
    assert {TOKENS[token] for token in allowed(matcher)} == {b"a", b"b", b"ab", b"abc", b"bc"}
    matcher.accept(ord("a"))
    assert {TOKENS[token] for token in allowed(matcher)} == {b"b", b"bc"}


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "ok": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@settings(deadline=None, max_examples=40, derandomize=True)
@given(noise=st.integers(0, 2**32 - 1))
def test_answers_fit_their_schema(noise, factory):
    text = walk(factory.matcher(Grammar("json_schema", json.dumps(SCHEMA))), noise)
    if text is not None:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert not re.search(r"[ \t]{61}|\n\s*\n", text), "white space without end"


@settings(deadline=None, max_examples=20, derandomize=True)
@given(noise=st.integers(0, 2**32 - 1))
def test_json_object_is_one(noise, factory):
    text = walk(factory.matcher(Grammar("json_object")), noise)
    if text is not None:
        assert isinstance(json.loads(text), dict)


def test_lark_grammars_are_followed(factory):
    lark = 'start: "(" start ")" | "ab"'
    matcher = factory.matcher(Grammar("lark", lark))
    for token in b"((":
        matcher.accept(token)
    assert {TOKENS[token] for token in allowed(matcher)} <= {b"(", b"a", b"ab"}
    for token in b"ab))":
        assert not matcher.finished
        matcher.accept(token)
    assert matcher.finished
    assert allowed(matcher) == [EOS, END]


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("json_schema", '{"type":', "EOF"),
        ("json_schema", "", "EOF"),
        ("json_schema", "[1]", "object"),
        ("json_schema", '{"type": "nope"}', "nope"),
        ("json_schema", '{"$ref": "#/none"}', "/none"),
        ("json_schema", '{"$ref": "http://localhost:1/x"}', "not"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "minLength"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", '{"type": "string", "pattern": "(?=a)"}', "look"),
        ("json_schema", '{"allOf": [' * 500 + "1" + "]}" * 500, "recursion"),
        ("json_schema", "\ud800", ""),
        ("regex", "(", "unclosed"),
        ("regex", r"[^\s\S]", "no text"),
        ("regex", "\ud800", ""),
        ("regex", "x" * 200_000, "131072 bytes"),
        ("regex", "(" * 20_000 + ")" * 20_000, ""),
        ("lark", "", "Empty"),
        ("lark", "start: x", "unknown name"),
        ("lark", "start: start", "no text"),
        ("lark", "start: " + "(" * 9000 + '"a"' + ")" * 9000, "nested"),
        ("lark", "no grammar at all", ""),
    ],
    ids=range(21),
)
def test_malformed_grammars_are_invalid_input(kind, text, says, factory, capfd):
    with pytest.raises(InvalidInput, match=r"^grammar") as caught:
        factory.matcher(Grammar(kind, text))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 600
    assert capfd.readouterr() == ("", ""), "the library printed something"


@pytest.mark.parametrize("pattern", ["([a-z]{1,1000}){1,1000}", "(a|b)*a(a|b){18}c", "(.*x){30}.*", "a{100000}"])
def test_hostile_grammars_end_their_own_answer_at_most(pattern, factory):
    rng = np.random.default_rng(0)
    try:
        matcher = factory.matcher(Grammar("regex", pattern))
        for _ in range(50):
            matcher.accept(int(rng.choice(allowed(matcher))))
    except InvalidInput as error:
        assert str(error).startswith("grammar")  # noqa: PT017 (either way is right)
    assert allowed(factory.matcher(Grammar("regex", "ab"))) == [TOKENS.index(b"ab")]


def test_masks_that_take_too_long_end_the_answer(factory, monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(grammar_module.time, "thread_time", lambda: 0.2 * next(now))
    matcher = factory.matcher(Grammar("regex", "a*"))  # 0.2 s of 0.5 s
    matcher.mask()
    with pytest.raises(InvalidInput, match="too long"):
        matcher.mask()


def test_a_token_that_may_not_come_is_refused(factory):
    for token in (ord("b"), MARK, EMPTY, EOS, VOCAB + 5):
        with pytest.raises(InvalidInput, match="grammar"):
            factory.matcher(Grammar("regex", "a+")).accept(token)


def test_a_copy_goes_its_own_way(factory):
    first = factory.matcher(Grammar("regex", "ax|ay"))
    first.accept(ord("a"))
    second = first.copy()
    first.accept(ord("x"))
    assert first.finished
    assert not second.finished
    assert {TOKENS[token] for token in allowed(second)} == {b"x", b"y"}


def test_an_encoder_that_does_not_spell_the_text_is_not_trusted():
    def prefixing(text):  # as encoders of the SentencePiece kind do
        return [ord(" "), *text.encode()]

    def marking(text):
        return [MARK]

    usual = GrammarFactory(
        TOKENS.__getitem__, VOCAB, special_ids=[EOS, MARK], eos_ids=[EOS], encode=lambda text: list(text.encode())
    )
    assert allowed(usual.matcher(Grammar("regex", "name"))) == [ord("n")], "the encoder's spelling of a forced text"
    for encode in (prefixing, marking, None):
        factory = GrammarFactory(TOKENS.__getitem__, VOCAB, special_ids=[EOS, MARK], eos_ids=[EOS], encode=encode)
        assert allowed(factory.matcher(Grammar("regex", "name"))) == [TOKENS.index(b"name")]


def test_the_vocabulary_is_built_once_and_only_when_needed():
    asked = []
    factory = GrammarFactory(
        lambda token: asked.append(token) or TOKENS[token], VOCAB, special_ids=[EOS], eos_ids=[EOS]
    )
    assert asked == []
    threads = [threading.Thread(target=factory.matcher, args=(Grammar("regex", "a"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == list(range(VOCAB))


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(InvalidInput, match="end-of-text"):
        GrammarFactory(TOKENS.__getitem__, VOCAB, special_ids=[], eos_ids=[]).matcher(Grammar("regex", "a"))
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"headrace\[llm\]"):
        GrammarFactory(TOKENS.__getitem__, VOCAB, special_ids=[EOS], eos_ids=[EOS]).matcher(Grammar("regex", "a"))


def test_samplers_draw_under_their_grammar_and_know_when_it_is_complete(factory):
    logits = np.random.default_rng(3).normal(0, 3, (4, VOCAB)).astype(np.float32)
    params = SamplingParams(temperature=1.5, seed=1, grammar=Grammar("regex", "(ab|c)d"))
    matcher = factory.matcher(params.grammar)
    samplers = [
        Sampler(params, VOCAB, [], index=0, matcher=matcher),
        Sampler(params, VOCAB, [], index=1, matcher=matcher.copy()),
        Sampler(SamplingParams(temperature=1.0, seed=5), VOCAB, []),
    ]
    assert not samplers[0].greedy
    texts = [b"", b"", b""]
    for _ in range(3):
        going = [i for i, sampler in enumerate(samplers) if not sampler.finished]
        for i, sample in zip(going, sample_rows([samplers[i] for i in going], logits, going), strict=True):
            samplers[i].accept(sample.token)
            texts[i] += TOKENS[sample.token]
    assert {texts[0], texts[1]} <= {b"abd", b"cd"}
    assert samplers[0].finished
    assert not samplers[2].finished


def test_guesses_under_a_grammar_give_the_same_text(factory):
    logits = np.random.default_rng(4).normal(0, 3, (6, VOCAB)).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=9, grammar=Grammar("regex", "[abc]{6}"))

    def sampler():
        return Sampler(params, VOCAB, [], matcher=factory.matcher(params.grammar))

    plain, one = [], sampler()
    while not one.finished:
        plain.append(one.sample(logits[len(plain)]).token)
        one.accept(plain[-1])
    (samples,) = sample_drafts([sampler()], logits, [0], [plain[:2]])
    assert [sample.token for sample in samples] == plain[:3]
    (samples,) = sample_drafts([sampler()], np.tile(logits, (2, 1)), [0], [[*plain, EOS]])
    assert [sample.token for sample in samples] == plain, "nothing follows a complete grammar"


def test_a_grammar_that_fails_ends_its_row_only(factory):
    logits = np.zeros((2, VOCAB), np.float32)
    grammar = Grammar("regex", "a+")
    stuck = factory.matcher(grammar)
    with pytest.raises(InvalidInput):
        stuck.accept(ord("b"))
    params = SamplingParams(grammar=grammar)
    samplers = [Sampler(params, VOCAB, [], matcher=matcher) for matcher in (stuck, factory.matcher(grammar))]
    failed, fine = sample_rows(samplers, logits, [0, 1])
    assert isinstance(failed.error, InvalidInput)
    assert fine.token == ord("a")
    contradiction = SamplingParams(grammar=grammar, logit_bias={ord("a"): -100.0})
    with pytest.raises(InvalidInput, match="logit_bias and grammar"):
        Sampler(contradiction, VOCAB, [], matcher=factory.matcher(grammar)).sample(logits[0])
