"""Speculation never changes a text: for any model and any guesses, greedy or drawn, the tokens are the plain ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StageFailed
from headrace.llm.lookup import Lookup, verify
from headrace.llm.params import SamplingParams
from headrace.llm.sampler import Sampler, sample_drafts, sample_rows

VOCAB = 70


def row_after(tokens, noise, order=2):
    """A deterministic model: logits that depend on nothing but the last few tokens."""
    rng = np.random.default_rng([noise, *tokens[-order:]])
    return rng.normal(0, 2, VOCAB).astype(np.float32)


def plain(sampler, prompt, noise, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sampler.sample(row_after(tokens, noise)).token)
        sampler.accept(tokens[-1])
    return tokens[len(prompt) :]


sampled = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.4, 1.0]), "seed": st.integers(0, 2**64 - 1), "logprobs": st.just(1)},
    optional={"top_k": st.integers(1, 10), "top_p": st.floats(0.1, 1), "repetition_penalty": st.floats(0.5, 2)},
)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    requests=st.lists(
        st.tuples(sampled, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)), min_size=1, max_size=4
    ),
    noise=st.integers(0, 1000),
    data=st.data(),
)
def test_drawn_text_is_the_plain_one_whatever_is_guessed(requests, noise, data):
    count = 12
    params = [SamplingParams(**given) for given, _ in requests]
    truth = [plain(Sampler(params[i], VOCAB, prompt), prompt, noise, count) for i, (_, prompt) in enumerate(requests)]
    samplers = [Sampler(params[i], VOCAB, prompt) for i, (_, prompt) in enumerate(requests)]
    answers = [[] for _ in requests]
    while any(len(answer) < count for answer in answers):
        drafts, rows, logits = [], [], []
        for i, (_, prompt) in enumerate(requests):
            right = truth[i][len(answers[i]) : len(answers[i]) + data.draw(st.integers(0, 4))]
            wrong = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=2))
            drafts.append(right + wrong)
            rows.append(len(logits))
            known = [*prompt, *answers[i]]
            logits += [row_after(known + drafts[i][:j], noise) for j in range(len(drafts[i]) + 1)]
        for i, samples in enumerate(sample_drafts(samplers, np.stack(logits), rows, drafts)):
            assert 1 <= len(samples) <= len(drafts[i]) + 1
            answers[i] += [sample.token for sample in samples]
            assert samplers[i].position == len(answers[i])
    assert [answer[:count] for answer in answers] == truth


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    noise=st.integers(0, 1000),
    order=st.integers(1, 4),
    limit=st.integers(0, 8),
    alphabet=st.integers(1, 6),
)
def test_greedy_text_is_the_plain_one_for_any_deterministic_model(prompt, noise, order, limit, alphabet):
    def model(tokens):
        return int(np.argmax(row_after(tokens, noise, order)[:alphabet]))

    wanted = list(prompt)
    while len(wanted) < len(prompt) + 60:
        wanted.append(model(wanted))
    lookup = Lookup(prompt, limit)
    steps = 0
    while len(lookup.tokens) < len(wanted):
        draft = lookup.draft(len(wanted) - len(lookup.tokens) - 1)
        assert len(draft) <= limit
        chosen = [model(lookup.tokens + draft[:j]) for j in range(len(draft) + 1)]
        kept = verify(draft, chosen)
        lookup.extend(chosen[:kept])
        lookup.record(len(draft), kept - 1)
        steps += 1
    assert lookup.tokens == wanted
    assert steps <= 60


def test_a_bad_row_ends_its_own_sequence_only():
    logits = np.zeros((4, VOCAB), np.float32)
    logits[:, 5] = 9
    logits[1, 3] = np.nan
    params = SamplingParams(logprobs=0)
    first, second = sample_drafts([Sampler(params, VOCAB, []) for _ in range(2)], logits, [0, 2], [[5], [5]])
    assert [sample.token for sample in first] == [5, -1]
    assert isinstance(first[1].error, StageFailed)
    assert [sample.token for sample in second] == [5, 5]


def test_without_guesses_it_is_one_draw_accepted():
    logits = np.random.default_rng(1).normal(0, 1, (2, VOCAB)).astype(np.float32)
    params = [SamplingParams(temperature=1.0, seed=i) for i in range(2)]
    ours = [Sampler(one, VOCAB, []) for one in params]
    single = sample_rows([Sampler(one, VOCAB, []) for one in params], logits, [1, 0])
    assert sample_drafts(ours, logits, [1, 0], [[], []]) == [[sample] for sample in single]
    assert [sampler.position for sampler in ours] == [1, 1]


@pytest.mark.parametrize(
    ("draft", "chosen", "kept"),
    [([], [4], 1), ([4], [4, 5], 2), ([4], [3, 5], 1), ([4, 5, 6], [4, 5, 7, 8], 3), ([4, 5, 6], [4, 5, 6, 8], 4)],
)
def test_verify_keeps_what_is_right_and_one_more(draft, chosen, kept):
    assert verify(draft, chosen) == kept
