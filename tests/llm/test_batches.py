"""Batches are made as they are asked for, and one that cannot be is refused with what was expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.llm.batches import check_batch, each_token, one_sequence
from headrace.llm.execution import Batch


def _ints(*values):
    return np.array(values, np.int32)


def _good():
    """Two sequences: three tokens from position 15 on, and one at 0."""
    return Batch(
        tokens=_ints(1, 2, 3, 4),
        positions=_ints(15, 16, 17, 0),
        starts=_ints(0, 3, 4),
        block_tables=np.array([[0, 2], [1, -1]], np.int32),
        rows=_ints(2, 3),
        greedy=np.array([True, False]),
    )


def _check(batch):
    check_batch(batch, n_pages=3, max_tokens=4, vocab_size=5)


def test_a_good_batch_passes_whatever_lies_in_unused_table_entries():
    _check(_good())
    none = np.zeros(0, np.int32)
    _check(Batch(none, none, _ints(0), np.zeros((0, 0), np.int32), none, none.astype(bool)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": _ints(1, 2, 3, 5)}, "tokens: expected numbers from 0 to 4, got 1 to 5"),
        ({"tokens": _ints(-1, 2, 3, 4)}, "tokens: expected numbers from 0 to 4, got -1"),
        ({"tokens": _ints(1, 2, 3, 4, 0)}, "tokens: expected at most 4, got 5"),
        ({"positions": _ints(15, 16, 17)}, "positions: expected 4, one for each token, got 3"),
        ({"positions": _ints(15, 17, 18, 0)}, "positions: expected consecutive"),
        ({"positions": _ints(-1, 0, 1, 0)}, "positions: expected numbers from 0 to 31, got -1"),
        ({"positions": _ints(30, 31, 32, 0)}, "positions: expected numbers from 0 to 31, got 30 to 32"),
        ({"starts": _ints(0, 3)}, "starts: expected rising numbers from 0 to 4"),
        ({"starts": _ints(1, 3, 4)}, "starts: expected rising"),
        ({"starts": _ints(0, 5, 4)}, "starts: expected rising"),
        ({"block_tables": np.array([[0, 2]], np.int32)}, r"block_tables: expected 2 rows, got the shape \[1, 2\]"),
        (
            {"block_tables": np.array([[0, 3], [1, 0]], np.int32)},
            "block_tables: expected numbers from 0 to 2, got 0 to 3",
        ),
        ({"block_tables": np.array([[0, 2], [-1, 0]], np.int32)}, "block_tables: expected numbers from 0 to 2, got -1"),
        ({"rows": _ints(2, 4)}, "rows: expected numbers from 0 to 3, got 2 to 4"),
        ({"greedy": np.array([True])}, "greedy: expected 2, one for each row, got 1"),
    ],
)
def test_a_bad_batch_is_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        _check(replace(_good(), **change))


def test_one_sequence():
    batch = one_sequence([7, 8], [4, 5], position=15, greedy=True)
    assert batch.tokens.tolist() == [7, 8]
    assert batch.positions.tolist() == [15, 16]
    assert batch.greedy.all()
    assert batch.starts.tolist() == [0, 2]
    assert batch.block_tables.tolist() == [[4, 5]]
    assert batch.rows.tolist() == [0, 1]
    check_batch(batch, n_pages=6, max_tokens=2, vocab_size=9)


def test_each_token_stands_alone_in_order():
    alone = list(each_token(_good()))
    assert [(one.tokens.tolist(), one.positions.tolist(), one.block_tables.tolist()) for one in alone] == [
        ([1], [15], [[0, 2]]),
        ([2], [16], [[0, 2]]),
        ([3], [17], [[0, 2]]),
        ([4], [0], [[1, -1]]),
    ]
    for one in alone:
        _check(one)
