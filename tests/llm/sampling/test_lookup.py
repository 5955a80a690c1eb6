"""Guesses follow what was written before, grow where they are right and cease where they are not."""

from __future__ import annotations

from headrace.llm.lookup import Lookup


def test_it_guesses_what_followed_the_last_occurrence():
    lookup = Lookup([1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 9, 1, 2, 3], 3)
    assert lookup.draft(10) == [7, 8, 9]
    assert lookup.draft(2) == [7, 8]
    assert lookup.draft(0) == []
    lookup.extend([4])
    assert lookup.draft(10) == [5, 9, 1]


def test_three_tokens_say_more_than_two():
    lookup = Lookup([1, 2, 3, 4, 8, 2, 3, 5, 1, 2, 3], 1)
    assert lookup.draft(1) == [4]


def test_a_loop_is_guessed_beyond_its_end():
    lookup = Lookup([7, 1, 2, 1, 2, 1, 2], 8)
    assert lookup.draft(5) == [1, 2, 1, 2, 1]


def test_nothing_is_guessed_without_a_match_or_a_limit():
    assert Lookup([1, 2, 3, 4, 5, 6], 8).draft(8) == []
    assert Lookup([], 8).draft(8) == []
    assert Lookup([1, 1, 1, 1], 0).draft(8) == []


def test_right_guesses_grow_again_and_wrong_ones_shrink():
    lookup = Lookup([1, 2] * 20, 8)
    lookup.record(8, 1)
    assert len(lookup.draft(8)) == 2
    lookup.record(2, 2)
    assert len(lookup.draft(8)) == 4
    for _ in range(3):
        lookup.record(4, 4)
    assert len(lookup.draft(99)) == 8


def _rate_of_guesses(right, count=4000):
    """How often a guess was made in so many steps; each one is right or wrong as told."""
    lookup = Lookup([1, 2, 3] * 4, 4)
    guesses = 0
    for step in range(count):
        draft = lookup.draft(4)
        kept = len(draft) if right else 0
        lookup.extend([1 + step % 3])
        if draft:
            guesses += 1
            lookup.record(len(draft), kept)
    return guesses / count


def test_guessing_ceases_where_it_does_not_pay_and_is_tried_again():
    assert _rate_of_guesses(right=True) > 0.95
    assert 0 < _rate_of_guesses(right=False) < 0.05


def test_one_token_in_agreement_is_enough_only_while_guesses_are_right():
    lookup = Lookup([5, 1, 2, 3, 4, 5], 2)
    assert lookup.draft(2) == []
    lookup.record(1, 1)
    assert lookup.draft(2) == [1, 2]
