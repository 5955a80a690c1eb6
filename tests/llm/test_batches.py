"""Batches are made as they are asked for; one that cannot be is refused by every executor, with what was expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.llm.batches import check_batch, each_token, one_sequence
from headrace.llm.execution import Batch
from headrace.llm.kernels import NativeExecutor
from headrace.llm.loader import load_model
from headrace.llm.reference import ReferenceExecutor
from headrace.testing.language import save_language_model

VOCAB = 265
"""Tokens of the tiny model."""


@pytest.fixture(scope="module", params=["reference", "native"])
def executor(request, tmp_path_factory):
    """3 pages, 4 tokens a step."""
    checkpoint, _, trace = load_model(save_language_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    if request.param == "reference":
        made = ReferenceExecutor(trace, checkpoint, n_pages=3, max_tokens=4)
    else:
        made = NativeExecutor(trace, checkpoint, n_pages=3, max_tokens=4, threads=2)
    assert made.vocab_size == VOCAB
    yield made
    made.close()
    checkpoint.close()


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
    check_batch(batch, n_pages=3, max_tokens=4, vocab_size=VOCAB)


def test_a_good_batch_passes_whatever_lies_in_unused_table_entries(executor):
    _check(_good())
    output = executor.step(_good())
    assert output.logits.shape == (1, VOCAB)
    assert executor.hidden(_good()).shape == (2, executor.width)


def test_a_step_may_want_nothing(executor):
    """Only the keys and values of its tokens, which are there afterwards."""
    prompt, last = one_sequence([5, 6, 7], [0]), one_sequence([8], [0], position=3)
    executor.step(prompt)
    logits = executor.step(last).logits.copy()
    for run in (executor.step, executor.hidden):
        executor.step(one_sequence([1, 2, 3], [0]))
        run(replace(prompt, rows=_ints(), greedy=np.zeros(0, bool)))
        np.testing.assert_array_equal(executor.step(last).logits, logits)


BAD = [
    ({"tokens": _ints(1, 2, 3, VOCAB)}, "token", "tokens: expected numbers from 0 to 264, got 1 to 265"),
    ({"tokens": _ints(-1, 2, 3, 4)}, "token", "tokens: expected numbers from 0 to 264, got -1"),
    ({"tokens": _ints(1, 2, 3, 4, 0)}, "token", "tokens: expected 1 to 4, got 5"),
    (
        {
            "tokens": _ints(),
            "positions": _ints(),
            "starts": _ints(0),
            "block_tables": np.zeros((0, 0), np.int32),
            "rows": _ints(),
            "greedy": np.zeros(0, bool),
        },
        "token",
        "tokens: expected 1 to 4, got 0",
    ),
    ({"positions": _ints(15, 16, 17)}, "position", "positions: expected 4, one for each token, got 3"),
    ({"positions": _ints(15, 17, 18, 0)}, "position", "positions: expected consecutive"),
    ({"positions": _ints(-1, 0, 1, 0)}, "position", "positions: expected numbers from 0 to 31, got -1"),
    ({"positions": _ints(30, 31, 32, 0)}, "block table", "positions: expected numbers from 0 to 31, got 30 to 32"),
    ({"starts": _ints(0, 3)}, "starts", "starts: expected rising numbers from 0 to 4"),
    ({"starts": _ints(1, 3, 4)}, "starts", "starts: expected rising"),
    ({"starts": _ints(0, 5, 4)}, "starts", "starts: expected rising"),
    (
        {"starts": _ints(0, 3, 3, 4), "block_tables": np.array([[0, 2], [0, 0], [1, 0]], np.int32)},
        "starts",
        "starts: expected rising",
    ),
    (
        {"block_tables": np.array([[0, 2]], np.int32)},
        "block_tables",
        r"block_tables: expected 2 rows, got the shape \[1, 2\]",
    ),
    (
        {"block_tables": np.array([[0, 3], [1, 0]], np.int32)},
        "page 3 of 3",
        "block_tables: expected numbers from 0 to 2, got 0 to 3",
    ),
    (
        {"block_tables": np.array([[0, 2], [-1, 0]], np.int32)},
        "page -1 of 3",
        "block_tables: expected numbers from 0 to 2, got -1",
    ),
    ({"rows": _ints(2, 4)}, "rows", "rows: expected numbers from 0 to 3, got 2 to 4"),
    ({"rows": _ints(-1, 2)}, "rows", "rows: expected numbers from 0 to 3, got -1"),
    ({"greedy": np.array([True])}, "greedy", "greedy: expected 2, one for each row, got 1"),
]


@pytest.mark.parametrize(("change", "word", "message"), BAD)
def test_a_bad_batch_is_refused_and_changes_nothing(executor, change, word, message):
    good = executor.step(_good()).logits.copy()
    bad = replace(_good(), **change)
    with pytest.raises(InvalidInput, match=message):
        _check(bad)
    with pytest.raises(InvalidInput, match=word if isinstance(executor, NativeExecutor) else message):
        executor.step(bad)
    np.testing.assert_array_equal(executor.step(_good()).logits, good)


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
