"""Perplexity and divergence are what their formulas say, over every token of every window."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.llm.batches import one_sequence
from headrace.llm.evaluate import divergence, perplexity, sample_text, windows
from headrace.llm.loader import load_model
from headrace.llm.reference import ReferenceExecutor
from headrace.testing.language import save_language_model

TOKENS = np.random.default_rng(8).integers(0, 250, 400).tolist()


@pytest.fixture(scope="module")
def executors(tmp_path_factory):
    checkpoint, _, trace = load_model(save_language_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    exact = ReferenceExecutor(trace, checkpoint, n_pages=20, max_tokens=300)
    rounded = ReferenceExecutor(trace, checkpoint, n_pages=20, max_tokens=50, simulate_int8=True)
    yield exact, rounded
    checkpoint.close()


def _logprobs(executor, window):
    """float64[n, vocab], straight from the definition."""
    n = executor.max_tokens
    parts = [
        executor.step(one_sequence(window[at : at + n], range(20), position=at)).logits.copy()
        for at in range(0, len(window), n)
    ]
    logits = np.concatenate(parts).astype(np.float64)[:-1]
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def test_perplexity_is_the_exponent_of_the_mean_surprise(executors):
    cut = windows(TOKENS, 300)
    assert [len(window) for window in cut] == [300, 100]
    surprise = np.concatenate([-_logprobs(executors[0], w)[np.arange(len(w) - 1), w[1:]] for w in cut])
    counted = []
    found = perplexity(executors[0], cut, progress=counted.append)
    assert found.tokens == sum(counted) == len(surprise) == 398
    assert found.perplexity == pytest.approx(np.exp(surprise.mean()), rel=1e-5)
    assert found.error == pytest.approx(found.perplexity * surprise.std() / np.sqrt(398), rel=1e-4)


def test_divergence_is_the_mean_of_kl(executors):
    exact, rounded = executors
    cut = windows(TOKENS, 200)
    kls, same = [], []
    for window in cut:
        p, q = _logprobs(exact, window), _logprobs(rounded, window)
        kls.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    kl = np.concatenate(kls)
    found = divergence(rounded, exact, cut)
    assert found.tokens == len(kl)
    assert found.mean_kl == pytest.approx(kl.mean(), rel=1e-3)
    assert found.p99_kl == pytest.approx(np.quantile(kl, 0.99), rel=1e-3)
    assert found.max_kl == pytest.approx(kl.max(), rel=1e-3)
    assert found.same_top1 == np.concatenate(same).mean()
    assert found.perplexity == pytest.approx(perplexity(rounded, cut).perplexity)
    assert found.reference_perplexity == pytest.approx(perplexity(exact, cut).perplexity)


def test_an_executor_does_not_diverge_from_itself(executors):
    found = divergence(executors[0], executors[0], windows(TOKENS, 200))
    assert (found.mean_kl, found.max_kl, found.same_top1) == (0, 0, 1)


@given(n=st.integers(0, 60), length=st.integers(-1, 20), bos=st.sampled_from([None, 999]))
def test_windows_hold_the_whole_text_but_for_what_predicts_nothing(n, length, bos):
    tokens, head = list(range(n)), [] if bos is None else [bos]
    if length <= len(head) or n + len(head) < 2 or (length == 1 and not head):
        with pytest.raises(InvalidInput, match="expected at least"):
            windows(tokens, length, bos)
        return
    cut = [window.tolist() for window in windows(tokens, length, bos)]
    assert all(2 <= len(window) <= length and window[: len(head)] == head for window in cut)
    held = [token for window in cut for token in window[len(head) :]]
    assert held == tokens or (held == tokens[:-1] and not head and n % length == 1)


def test_a_window_larger_than_the_pages_is_refused(executors):
    with pytest.raises(InvalidInput, match="window length: expected at most 320 tokens, got 321"):
        perplexity(executors[0], windows(TOKENS, 321))


def test_the_sample_text_is_varied():
    text = sample_text()
    assert len(text) > 8000
    scripts = {unicodedata.name(char).split()[0] for char in text if char.isalpha()}
    assert {"LATIN", "CYRILLIC", "CJK", "HIRAGANA", "HANGUL", "ARABIC", "DEVANAGARI"} <= scripts
    assert "def merge(" in text
    assert "SELECT" in text
