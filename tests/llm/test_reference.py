"""The oracle gives one answer for a sequence however it is cut, batched and paged. What it computes is held to
`transformers` in tests/llm/models and tests/llm/formats."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headrace.errors import InvalidInput
from headrace.llm.batches import one_sequence
from headrace.llm.execution import PAGE_TOKENS, Batch
from headrace.llm.loader import load_model
from headrace.llm.reference import ReferenceExecutor, round_int8
from headrace.llm.trace import Attention, Embed, Logits, Trace
from headrace.testing.language import save_language_model

TOKENS = np.random.default_rng(5).integers(0, 250, 70).astype(np.int32)
PAGES = np.array([3, 0, 7, 2, 5], np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    checkpoint, _, trace = load_model(save_language_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    windowed = [replace(op, window=9, softcap=2.0) if isinstance(op, Attention) else op for op in trace.ops]
    yield Trace(windowed), checkpoint
    checkpoint.close()


@pytest.fixture
def executor(model):
    def make(ops=None, **options):
        trace, checkpoint = model
        return ReferenceExecutor(Trace(ops) if ops else trace, checkpoint, n_pages=12, max_tokens=128, **options)

    return make


@pytest.fixture(scope="module")
def whole(model):
    """The logits after every token, computed in one step."""
    return ReferenceExecutor(*model, n_pages=12, max_tokens=128).step(one_sequence(TOKENS, PAGES)).logits


def _chunks(executor, cuts):
    bounds = [0, *sorted(set(cuts)), len(TOKENS)]
    return np.concatenate(
        [
            executor.step(one_sequence(TOKENS[start:end], PAGES, position=start)).logits.copy()
            for start, end in pairwise(bounds)
        ]
    )


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, len(TOKENS) - 1), max_size=6))
def test_a_prompt_may_be_cut_anywhere(model, whole, cuts):
    executor = ReferenceExecutor(*model, n_pages=12, max_tokens=128)
    np.testing.assert_allclose(_chunks(executor, cuts), whole, rtol=1e-6, atol=1e-6)


def test_invariant_means_the_same_bits(executor):
    whole = executor(invariant=True).step(one_sequence(TOKENS, PAGES)).logits
    np.testing.assert_array_equal(_chunks(executor(invariant=True), [1, 17, 18, 40]), whole)


def test_it_does_not_matter_which_pages_hold_a_sequence(executor, whole):
    found = executor().step(one_sequence(TOKENS, [11, 10, 9, 8, 6])).logits
    np.testing.assert_array_equal(found, whole)


def test_sequences_of_a_batch_do_not_see_each_other(executor, whole):
    one = executor()
    one.step(one_sequence(TOKENS[:20], PAGES))
    other = TOKENS[:30][::-1]
    batch = Batch(
        tokens=np.concatenate([other, TOKENS[20:21]]).astype(np.int32),
        positions=np.array([*range(30), 20], np.int32),
        starts=np.array([0, 30, 31], np.int32),
        block_tables=np.array([[8, 9], [3, 0]], np.int32),
        rows=np.array([30, 29], np.int32),
        greedy=np.array([False, True]),
    )
    output = one.step(batch)
    np.testing.assert_allclose(output.logits, whole[20:21], rtol=1e-6, atol=1e-6)
    alone = executor().step(one_sequence(other, [0, 1])).logits
    assert output.argmax.tolist() == [whole[20].argmax(), alone[29].argmax()]


def test_a_copied_page_serves_another_sequence(executor, whole):
    one = executor()
    one.step(one_sequence(TOKENS[:20], [4, 6]))
    one.copy_page(6, 1)
    one.step(one_sequence(TOKENS[:12][::-1], [6], position=0))  # the original is written over
    found = one.step(one_sequence(TOKENS[20:25], [4, 1], position=20)).logits
    np.testing.assert_allclose(found, whole[20:25], rtol=1e-6, atol=1e-6)
    for pages in ((12, 0), (0, -1)):
        with pytest.raises(InvalidInput, match="expected numbers below 12"):
            one.copy_page(*pages)


def test_positions_beyond_the_window_are_not_read(executor, whole):
    one = executor()
    one.step(one_sequence(TOKENS[:40], PAGES))
    for layer_pages in one._pages.values():
        layer_pages[:, PAGES[0]] = np.nan  # positions 0 to 15; with 2 layers of window 9, position 40 needs 24 and on
    found = one.step(one_sequence(TOKENS[40:41], PAGES, position=40)).logits
    np.testing.assert_allclose(found, whole[40:41], rtol=1e-6, atol=1e-6)


def test_a_window_and_a_cap_change_the_answer(model, executor, whole):
    plain = [replace(op, window=0) if isinstance(op, Attention) else op for op in model[0].ops]
    found = executor(plain).step(one_sequence(TOKENS, PAGES)).logits
    np.testing.assert_allclose(found[:9], whole[:9], rtol=1e-6, atol=1e-6)
    assert np.abs(found[20:] - whole[20:]).max() > 1e-2
    uncapped = [replace(op, softcap=0.0) if isinstance(op, Attention) else op for op in model[0].ops]
    assert np.abs(executor(uncapped).step(one_sequence(TOKENS, PAGES)).logits - whole).max() > 1e-2


def test_logits_follow_from_the_hidden_state(model, executor, whole):
    one, rows = executor(), np.array([69, 3], np.int32)
    hidden = one.hidden(one_sequence(TOKENS, PAGES, rows=rows))
    assert hidden.dtype == np.float32
    assert hidden.shape == (2, one.width)
    head = model[1].dequantise(model[0].ops[-1].head.name)
    np.testing.assert_allclose(hidden @ head.T, whole[rows], rtol=1e-4, atol=1e-4)


def _with(ops, kind, **change):
    return [replace(op, **change) if isinstance(op, kind) else op for op in ops]


def test_ties_go_to_the_lowest_token_and_nan_is_told(model, executor):
    batch = one_sequence(TOKENS[:3], [0], greedy=True)
    ops = model[0].ops
    flat = executor(_with(ops, Embed, scale=0.0)).step(batch)
    assert flat.argmax.tolist() == [0, 0, 0]
    assert flat.logits.shape == (0, executor().vocab_size)
    assert executor(_with(ops, Embed, scale=float("nan"))).step(batch).argmax.tolist() == [-1, -1, -1]


def test_logits_are_capped(model, executor, whole):
    found = executor(_with(model[0].ops, Logits, softcap=1.5)).step(one_sequence(TOKENS, PAGES)).logits
    np.testing.assert_allclose(found, 1.5 * np.tanh(whole / 1.5), rtol=1e-5, atol=1e-6)


def test_an_impossible_batch_is_refused_before_anything_is_written(executor, whole):
    one = executor()
    one.step(one_sequence(TOKENS[:40], PAGES))
    with pytest.raises(InvalidInput, match="tokens: expected numbers from 0"):
        one.step(one_sequence(np.array([5, one.vocab_size]), PAGES, position=30))
    found = one.step(one_sequence(TOKENS[40:41], PAGES, position=40)).logits
    np.testing.assert_allclose(found, whole[40:41], rtol=1e-6, atol=1e-6)


def test_every_rounding_costs_something_and_not_much(executor, whole):
    base = executor(dtype=np.float32).step(one_sequence(TOKENS, PAGES)).logits
    spread = float(np.abs(whole).max())
    assert 0 < np.abs(base - whole).max() < 1e-4 * spread
    errors = {}
    for name, options in {
        "int8 inputs": {"simulate_int8": True},
        "float16 pages": {"kv": "float16"},
        "int8 pages": {"kv": "int8"},
    }.items():
        errors[name] = np.abs(executor(**options).step(one_sequence(TOKENS, PAGES)).logits - whole).max() / spread
    assert 1e-6 < errors["float16 pages"] < errors["int8 pages"] < 0.1
    assert 1e-4 < errors["int8 inputs"] < 0.1


def test_sizes(executor):
    one = executor()
    assert (one.n_pages, one.max_tokens, one.width) == (12, 128, 64)
    assert one.page_bytes == 2 * 2 * PAGE_TOKENS * 2 * 16 * 8  # layers, k and v, positions, kv heads, head, float64
    assert one.vocab_size > 256
    one.close()
    one.close()


@given(
    x=arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=st.floats(-1000, 1000, width=32)),
    block=st.sampled_from([1, 7, 32]),
)
def test_int8_rounding_is_within_half_a_step_of_each_block(x, block):
    rounded = round_int8(x, block)
    assert rounded.shape == x.shape
    for start in range(0, x.shape[1], block):
        part, found = x[:, start : start + block], rounded[:, start : start + block]
        step = np.abs(part).max(axis=1, keepdims=True) / 127
        assert (np.abs(found - part) <= step * (0.5 + 1e-9)).all()
        steps = np.divide(found, step, out=np.zeros_like(found), where=step > 1e-300)
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)


def test_int8_rounding_takes_halves_to_even():
    np.testing.assert_array_equal(round_int8(np.array([[127.0, 0.5, 1.5, 2.5, -0.5]]), 32), [[127, 0, 2, 2, 0]])
