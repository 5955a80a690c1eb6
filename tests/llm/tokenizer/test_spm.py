"""Merging by score: the definition, bytes for what is no token, the space in front, spaces inside tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.llm.tokenizer import load_tokenizer

fixed = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _defined(text: str, metadata: dict[str, Any]) -> list[int]:
    """All of a text at once, by the definition: the leftmost of the pairs with the best score, again and again."""
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    scores = metadata["tokenizer.ggml.scores"]
    parts = [*text.replace(" ", "▁")]
    while pairs := [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found = []
    for part in parts:
        found += [ids[part]] if part in ids else [ids[f"<0x{value:02X}>"] for value in part.encode()]
    return found


@fixed
@given(text=st.text(st.sampled_from("helowrd ▁é漢\n")))
def test_tokens_are_those_of_the_definition(scored_metadata, text):
    scored_metadata["tokenizer.ggml.add_space_prefix"] = False
    tokenizer = load_tokenizer(scored_metadata)
    assert tokenizer.encode(text, special=False) == _defined(text, scored_metadata)
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text.replace("▁", " ")


@fixed
@given(text=st.text(st.sampled_from("ab d"), max_size=30))
def test_tokens_with_a_space_inside_are_found_across_words(scored_metadata, text):
    tokens = [*scored_metadata["tokenizer.ggml.tokens"][:259], *"abd▁", "a▁", "a▁b", "▁b", "b▁▁", "▁▁", "d▁a"]
    metadata = {
        **scored_metadata,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 263 + [-1.0, -2.0, -2.0, -3.0, -3.0, -4.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 10,
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert load_tokenizer(metadata).encode(text, special=False) == _defined(text, metadata)


def test_a_space_goes_in_front_of_a_text_and_behind_a_special_token(scored_metadata):
    tokenizer = load_tokenizer(scored_metadata)
    hello = scored_metadata["tokenizer.ggml.tokens"].index("▁hello")
    assert tokenizer.encode("hello") == [1, hello]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("hello</s>hello", parse_special=True) == [1, hello, 2, hello]
    assert tokenizer.decode([hello]) == "hello"
    assert tokenizer.decode([hello, hello]) == "hello hello"


def test_defaults_are_those_of_llama_2(scored_metadata):
    tokenizer = load_tokenizer(scored_metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.end_ids) == (1, 2, {2})
    assert (tokenizer.marks.add_bos, tokenizer.marks.add_eos) == (True, False)


def test_a_byte_token_is_its_byte(scored_metadata):
    tokenizer = load_tokenizer(scored_metadata)
    assert [tokenizer.token_bytes(3 + value) for value in range(256)] == [bytes((value,)) for value in range(256)]
    assert tokenizer.vocabulary.names["<0x0A>"] == 13


def test_equal_scores_merge_from_the_left(scored_metadata):
    tokens = scored_metadata["tokenizer.ggml.tokens"]
    scored_metadata["tokenizer.ggml.scores"][:] = 0
    scored_metadata["tokenizer.ggml.add_space_prefix"] = False
    pieces = [tokens[token] for token in load_tokenizer(scored_metadata).encode("llo", special=False)]
    assert pieces == ["ll", "o"]
