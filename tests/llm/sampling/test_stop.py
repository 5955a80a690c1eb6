"""Stop texts are found as a search of the whole text finds them, and nothing is held back that need not be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.llm.stop import StopMatcher


def naive(stops, text):
    """(what comes before the stop that ends first, that stop); the longest of those that end together."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, ""


def could_begin(stops, text):
    """The longest end of `text` with which a stop begins."""
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


alphabet = st.sampled_from("abä")
words = st.text(alphabet, min_size=1, max_size=6)


@settings(max_examples=500, deadline=None)
@given(stops=st.lists(words, max_size=5), pieces=st.lists(st.text(alphabet, max_size=4), max_size=20))
def test_any_pieces_give_what_a_search_of_the_whole_gives(stops, pieces):
    matcher = StopMatcher(stops)
    shown = fed = ""
    for piece in pieces:
        shown += matcher.push(piece)
        fed += piece
        before, found = naive(stops, fed)
        assert matcher.matched == found
        # All of it is shown but what may still become a stop.
        assert shown == (before if found else fed[: len(fed) - could_begin(stops, fed)])
    assert shown + matcher.flush() == naive(stops, "".join(pieces))[0]


def test_nothing_comes_after_a_stop():
    matcher = StopMatcher(["END"])
    assert matcher.push("one END two") == "one "
    assert matcher.push("three") == matcher.flush() == ""
    assert matcher.matched == "END"


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_stop_may_span_pieces(cut):
    matcher = StopMatcher(["\n\nUser:"])
    text = "Hi.\n\nUser: more"
    shown = "".join(matcher.push(text[i : i + cut]) for i in range(0, len(text), cut))
    assert (shown, matcher.matched) == ("Hi.", "\n\nUser:")


def test_what_turns_out_to_be_no_stop_is_shown_at_once():
    matcher = StopMatcher(["abcd"])
    assert [matcher.push(char) for char in "abcabx"] == ["", "", "", "abc", "", "abx"]


def test_without_stops_all_passes():
    matcher = StopMatcher([])
    assert matcher.push("anything") == "anything"
    assert matcher.flush() == ""


def test_long_stops_and_repetitive_text_cost_little():
    # Quadratic work would be 10^10 steps here, which the timeout of the suite would end.
    matcher = StopMatcher(["a" * 100_000 + "b"])
    shown = sum(len(matcher.push("a" * 10)) for _ in range(10_100))
    assert shown == 1000
    assert len(matcher.flush()) == 100_000
