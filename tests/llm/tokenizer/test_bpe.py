"""Byte-pair encoding from GGUF's keys makes the tokens of the vocabulary it came from, and comes back to the text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput, LoadFailed
from headrace.llm.formats.texts import Texts
from headrace.llm.tokenizer import load_tokenizer
from headrace.llm.tokenizer.merge import merge

fixed = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.sampled_from(
    ["the", " fox", " dog", "Don't", " 12", "\n\n", "  ", "привет", "世界", "👍🏽", "é", " jumps", "quick"]
)
texts = st.lists(words | st.text(st.characters(codec="utf-8"), max_size=4), max_size=12).map("".join)


@fixed
@given(text=texts)
def test_tokens_are_those_of_the_trainer(byte_level, byte_level_metadata, text):
    tokenizer = load_tokenizer(byte_level_metadata)
    ids = tokenizer.encode(text)
    byte_level.encode_special_tokens = True
    assert ids == byte_level.encode(text).ids
    assert tokenizer.decode(ids) == text


@fixed
@given(text=texts)
def test_a_blob_of_texts_is_as_good_as_a_list(byte_level_metadata, text):
    def blob(strings: list[str]) -> Texts:
        raw = [string.encode() for string in strings]
        return Texts(b"".join(raw), np.cumsum([0, *map(len, raw)]).astype(np.int32))

    compact = {key: blob(value) if isinstance(value, list) else value for key, value in byte_level_metadata.items()}
    assert load_tokenizer(compact).encode(text) == load_tokenizer(byte_level_metadata).encode(text)


@given(
    st.text("abc", max_size=20), st.lists(st.sampled_from(["ab", "bc", "ca", "abc", "aa", "bca", "cab"]), unique=True)
)
def test_the_best_pair_is_always_merged_next(text, ranked):
    ranks = {pair.encode(): rank for rank, pair in enumerate(ranked)}
    raw = text.encode()
    found = merge(raw, [*range(len(raw) + 1)], [*raw], lambda pair, _: (ranks.get(pair, -1), 1000 + ranks.get(pair, 0)))
    assert [raw[begin:end].decode() for begin, end, _ in found] == _merged(text, ranked)
    assert all(token == raw[begin] if end - begin == 1 else token >= 1000 for begin, end, token in found)


def _merged(text: str, ranked: list[str]) -> list[str]:
    """The definition: look at all pairs, merge the leftmost of the best, begin anew."""
    parts = [*text]
    while pairs := [(ranked.index(a + b), i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranked]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def test_a_pair_merges_only_as_listed(byte_level_metadata):
    """The same token can be reached by one split and not by another."""
    metadata = _small(["a", "b", "c", "ab", "bc", "abc"], ["b c", "ab c"])
    assert load_tokenizer(metadata).encode("abc") == [0, 4]


def test_a_token_may_have_several_merges():
    metadata = _small(["a", "b", "c", "ab", "bc", "abc"], ["a b", "b c", "a bc", "ab c"])
    assert load_tokenizer(metadata).encode("abc") == [5]


def test_a_word_that_is_a_token_is_taken_whole_where_the_scheme_says_so():
    metadata = _small(["a", "b", "abba"], []) | {"tokenizer.ggml.add_bos_token": False}
    assert load_tokenizer({**metadata, "tokenizer.ggml.pre": "llama-bpe"}).encode("abba") == [2]
    assert load_tokenizer({**metadata, "tokenizer.ggml.pre": "gpt-2"}).encode("abba") == [0, 1, 1, 0]


def test_bytes_that_are_no_token_are_left_out():
    assert load_tokenizer(_small(["a", "b"], [])).encode("aéb") == [0, 1]


def test_a_long_word_costs_no_more_than_its_length(byte_level_metadata):
    tokenizer = load_tokenizer(byte_level_metadata)
    text = "the" * 20_000
    assert tokenizer.decode(tokenizer.encode(text)) == text


def _small(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "there is no tokenizer: no tokenizer.json, and tokenizer.ggml.model is None"),
        ({"model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'; known are: gpt2, llama"),
        ({"pre": "klingon"}, "tokenizer.ggml.pre is 'klingon'"),
        ({"tokens": None}, "tokenizer.ggml.tokens: expected an array of texts, got NoneType"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens: expected an array of texts"),
        ({"merges": None}, "tokenizer.ggml.merges: expected an array of texts"),
        ({"merges": ["a b", "ab"]}, r"merges\[1\] is 'ab'; expected the two parts of a token"),
        ({"merges": ["a b", "a  b"]}, r"merges\[1\] is 'a  b'"),
        ({"merges": ["a b", " ab"]}, r"merges\[1\] is ' ab'"),
        ({"merges": ["a b", "b a"]}, r"merges\[1\] is 'b a'"),
        ({"token_type": [1, 1]}, "token_type: expected 3 numbers, one for each token"),
        ({"token_type": "xyz"}, "token_type: expected numbers, got str"),
        ({"bos_token_id": "one"}, "bos_token_id: expected a token id, got 'one'"),
        ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id is not set"),
        ({"add_bos_token": True, "bos_token_id": 2**32 - 1}, "add_bos_token is true"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(change, message):
    metadata = _small(["a", "b", "ab"], ["a b"])
    for key, value in change.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(LoadFailed, match=message):
        load_tokenizer(metadata)


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_a_lone_surrogate_is_refused(byte_level_metadata, text):
    with pytest.raises(InvalidInput, match=r"character \d is a lone surrogate, U\+D"):
        load_tokenizer(byte_level_metadata).encode(text)


@pytest.mark.parametrize("text", [b"bytes", None, 3, ["a"]])
def test_what_is_no_text_is_refused(byte_level_metadata, text):
    with pytest.raises(InvalidInput, match="expected a str, got"):
        load_tokenizer(byte_level_metadata).encode(text)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_unknown_id_is_refused(byte_level_metadata, token):
    tokenizer = load_tokenizer(byte_level_metadata)
    for use in (
        lambda: tokenizer.decode([token]),
        lambda: tokenizer.token_bytes(token),
        lambda: tokenizer.is_special(token),
    ):
        with pytest.raises(InvalidInput, match=f"token id {token}: expected one from 0 to"):
            use()
