"""Streams never split a character, lose none, and say U+FFFD as soon as it is certain."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.llm.tokenizer import Detokenizer, load_tokenizer

fixed = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = 3  # where the byte tokens of the vocabulary begin


def _stream(metadata, data: bytes) -> list[str]:
    stream = Detokenizer(load_tokenizer(metadata))
    return [*(stream.push(BYTES + value) for value in data), stream.flush()]


@fixed
@given(data=st.binary(max_size=12) | st.text(st.characters(codec="utf-8"), max_size=6).map(str.encode))
def test_pieces_are_the_text(scored_metadata, data):
    assert "".join(_stream(scored_metadata, data)) == data.decode("utf-8", "replace")


@fixed
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=6))
def test_a_character_comes_when_it_is_complete_and_not_before(scored_metadata, text):
    pieces = _stream(scored_metadata, text.encode())
    expected = []
    for character in text:
        expected += [""] * (len(character.encode()) - 1) + [character]
    assert pieces == [*expected, ""]


def test_what_can_become_no_character_is_told_at_once(scored_metadata):
    assert _stream(scored_metadata, b"a\xffb") == ["a", "\ufffd", "b", ""]
    assert _stream(scored_metadata, b"\xe4\xbd") == ["", "", "\ufffd"]
    assert _stream(scored_metadata, b"\xe4a\xe4\xbd\xa0") == ["", "\ufffda", "", "", "你", ""]


def test_marks_are_left_out(scored_metadata):
    assert Detokenizer(load_tokenizer(scored_metadata)).push(2) == ""


def test_after_a_flush_it_begins_anew(scored_metadata):
    stream = Detokenizer(load_tokenizer(scored_metadata))
    assert stream.push(BYTES + 0xE4) + stream.flush() == "\ufffd"
    assert stream.push(BYTES + ord("a")) == "a"


def test_an_unknown_id_is_refused(scored_metadata):
    with pytest.raises(InvalidInput, match="token id 100000: expected"):
        Detokenizer(load_tokenizer(scored_metadata)).push(100000)
