"""Log-probabilities are the model's own, whatever the filters, and come with the tokens they belong to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.llm.params import SamplingParams
from headrace.llm.sampler import Sampler, sample_rows


def log_softmax(row):
    x = row.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    size=st.sampled_from([1, 5, 64, 129, 3000]),
    noise=st.integers(0, 2**32 - 1),
    ties=st.booleans(),
    count=st.integers(0, 20),
    filters=st.sampled_from([{}, {"top_k": 1}, {"logit_bias": {0: -100.0}}, {"top_p": 0.2}, {"min_p": 0.5}]),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
)
def test_they_are_those_of_the_raw_row(size, noise, ties, count, filters, temperature):
    row = np.random.default_rng(noise).normal(0, 4, size).astype(np.float32)
    if ties:
        row = np.round(row)
    if size == 1:
        filters = {}
    params = SamplingParams(temperature=temperature, logprobs=count, seed=noise, **filters)
    sample = Sampler(params, size, []).sample(row)
    truth = log_softmax(row)
    assert sample.logprob == pytest.approx(truth[sample.token], abs=1e-5)
    best = np.lexsort((np.arange(size), -row))[:count]
    assert [token for token, _ in sample.top] == best.tolist()
    assert [logprob for _, logprob in sample.top] == pytest.approx(truth[best].tolist(), abs=1e-5)


def test_impossible_tokens_are_no_alternatives():
    row = np.array([1, -np.inf, 0, -np.inf], np.float32)
    sample = Sampler(SamplingParams(logprobs=4), 4, []).sample(row)
    assert [token for token, _ in sample.top] == [0, 2]


def test_a_sharp_row_has_no_logprob_above_zero():
    row = np.full(50_000, -200, np.float32)
    row[123] = 500
    sample = Sampler(SamplingParams(logprobs=2), 50_000, []).sample(row)
    assert sample.logprob == 0
    assert sample.top == ((123, 0.0), (0, -700.0))


def test_each_row_has_its_own():
    logits = np.random.default_rng(2).normal(0, 3, (6, 700)).astype(np.float32)
    samplers = [Sampler(SamplingParams(temperature=1.0, seed=i, logprobs=i), 700, []) for i in range(6)]
    for i, sample in enumerate(sample_rows(samplers, logits, list(range(6)))):
        assert len(sample.top) == i
        assert sample.logprob == pytest.approx(log_softmax(logits[i])[sample.token], abs=1e-5)


def test_none_are_made_unless_asked_for():
    sample = Sampler(SamplingParams(temperature=1.0), 10, []).sample(np.zeros(10, np.float32))
    assert (sample.logprob, sample.top) == (0.0, ())
