"""The native sampler against the NumPy one, its draws against their probabilities, and what it does with bad rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput, StageFailed
from headrace.llm.params import SamplingParams
from headrace.llm.sampler import Sampler, sample_rows

# A draw this close to the border between two tokens may fall on either side: weights are float32.
SLACK = 2e-5


def draw_many(params, row, seeds, prompt=(), answer=(), index=0):
    """One draw for each seed, all from the same row, in one call."""
    samplers = []
    for seed in seeds:
        sampler = Sampler(SamplingParams(**{**_fields(params), "seed": seed}), len(row), prompt, index=index)
        for token in answer:
            sampler.accept(token)
        samplers.append(sampler)
    return sample_rows(samplers, row.reshape(1, -1), [0] * len(samplers))


def _fields(params):
    return {name: getattr(params, name) for name in params.__struct_fields__}


def check_draw(sample, probabilities, drawn):
    """The token is the one whose stretch of the cumulated probabilities holds `drawn`."""
    assert sample.error is None
    ends = np.cumsum(probabilities)
    assert probabilities[sample.token] > 0, "a token that the filters drop"
    assert ends[sample.token] - probabilities[sample.token] - SLACK <= drawn <= ends[sample.token] + SLACK


probability = st.floats(0.05, 1.0)
combinations = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7, 50.0]),
        "top_k": st.sampled_from([1, 2, 3, 7, 40, 63, 64, 65, 1000, 10**9]),
        "top_p": probability,
        "min_p": st.floats(0.0, 0.9),
        "typical_p": probability,
        "repetition_penalty": st.sampled_from([0.5, 1.1, 2.0]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 9), st.sampled_from([-100.0, -3.0, 2.5, 99.0, 100.0, 1e9])),
    },
)


def shaken(params):
    """The same with every threshold moved a little to either side."""
    for factor in (1 - 3e-5, 1 + 3e-5):
        moved = {name: min(1.0, getattr(params, name) * factor) for name in ("top_p", "min_p", "typical_p")}
        moved = {name: value for name, value in moved.items() if getattr(params, name) not in (0.0, 1.0)}
        yield SamplingParams(**{**_fields(params), **moved})


@settings(deadline=None, max_examples=250, derandomize=True)
@given(
    given=combinations,
    size=st.sampled_from([10, 63, 64, 65, 200, 1000, 5000]),
    noise=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.3, 2.0, 8.0]),
    ties=st.booleans(),
    index=st.integers(0, 3),
)
def test_every_combination_of_filters_draws_what_the_reference_draws(
    given, size, noise, spread, ties, index, reference
):
    params = SamplingParams(**given)
    params.check(size)
    rng = np.random.default_rng(noise)
    row = rng.normal(0, spread, size).astype(np.float32)
    if ties and params.typical_p == 1:
        row = np.round(row)
    row[rng.random(size) < 0.1] = -np.inf
    row[rng.integers(size)] = 1.0
    prompt, answer = rng.integers(0, size, 20).tolist(), rng.integers(0, size, 5).tolist()
    x = reference.edited(row, params, prompt, answer, None)
    if not np.isfinite(x).any():
        assert all(one.error for one in draw_many(params, row, [1], prompt, answer))
        return
    probabilities = reference.distribution(x, params)
    for other in shaken(params):
        if not np.array_equal(reference.distribution(x, other) > 0, probabilities > 0):
            return  # at a border that float32 may see on the other side
    seeds = rng.integers(-(2**63), 2**63, 16).tolist()
    for seed, sample in zip(seeds, draw_many(params, row, seeds, prompt, answer, index), strict=True):
        check_draw(sample, probabilities, reference.uniform(seed, len(answer), index))


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.0, "typical_p": 0.6},
        {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_their_probability_says(given, reference):
    row = np.random.default_rng(5).normal(0, 1.5, 12).astype(np.float32)
    params = SamplingParams(**given)
    n = 20_000
    samples = draw_many(params, row, range(n))
    counts = np.bincount([sample.token for sample in samples], minlength=12)
    expected = n * reference.distribution(row.astype(float), params)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = max(kept.sum() - 1, 1)
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 4.5 * math.sqrt(2 / (9 * freedom))) ** 3, "p < 1e-5"


def test_positions_answers_and_seeds_draw_independently():
    row = np.zeros(1000, np.float32)
    params = SamplingParams(temperature=1.0, seed=7)
    by_position = []
    sampler = Sampler(params, 1000, [])
    for _ in range(200):
        sample = sampler.sample(row)
        by_position.append(sample.token)
        sampler.accept(sample.token)
    assert sampler.position == 200
    by_index = [Sampler(params, 1000, [], index=index).sample(row).token for index in range(64)]
    by_seed = [draw.token for draw in draw_many(params, row, range(200))]
    for tokens in (by_position, by_index, by_seed):
        assert len(set(tokens)) > 0.8 * len(tokens)
    assert by_index[0] == by_position[0]


def test_a_draw_does_not_depend_on_what_else_is_drawn():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (20, 3000)).astype(np.float32)
    kinds = [
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3, logprobs=4),
        SamplingParams(temperature=0.5, min_p=0.1, seed=-3, repetition_penalty=1.3, logit_bias={5: 3.0}),
        SamplingParams(temperature=0.0, frequency_penalty=0.5),
    ]
    samplers = [Sampler(kinds[i % 4], 3000, [1, 2, 3]) for i in range(20)]
    order = rng.permutation(20).tolist()
    together = sample_rows([samplers[i] for i in order], logits, order)
    for i, sample in zip(order, together, strict=True):
        assert sample == Sampler(kinds[i % 4], 3000, [1, 2, 3]).sample(logits[i])


def test_no_seed_is_a_fresh_one():
    row = np.zeros(10_000, np.float32)
    samplers = [Sampler(SamplingParams(temperature=1.0), 10_000, []) for _ in range(20)]
    tokens = [sampler.sample(row).token for sampler in samplers]
    assert len(set(tokens)) > 15


@pytest.mark.parametrize("seed", [-1, 2**64 - 1])
def test_seeds_count_modulo_two_to_the_64(seed, reference):
    row = np.zeros(10_000, np.float32)
    sample = Sampler(SamplingParams(temperature=1.0, seed=seed), 10_000, []).sample(row)
    assert sample.token == int(reference.uniform(2**64 - 1, 0, 0) * 10_000)


@pytest.mark.parametrize(
    ("given", "greedy"),
    [
        ({}, True),
        ({"top_k": 5, "top_p": 0.5, "seed": 1, "stop": ("x",), "n": 2, "lookup": 3}, True),
        ({"temperature": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": -0.1}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"logprobs": 0}, False),
    ],
    ids=str,
)
def test_greedy_is_where_the_argmax_is_enough(given, greedy):
    assert Sampler(SamplingParams(**given), 10, [1]).greedy is greedy


def test_without_temperature_the_lowest_of_the_likeliest_is_chosen():
    row = np.zeros(300, np.float32)
    row[[70, 130, 299]] = 2.0
    assert Sampler(SamplingParams(), 300, []).sample(row).token == 70
    assert Sampler(SamplingParams(logit_bias={70: -0.5}), 300, []).sample(row).token == 130
    assert Sampler(SamplingParams(temperature=1e-300, seed=1), 300, []).sample(row).token in {70, 130, 299}


@pytest.mark.parametrize(("given", "kept"), [({"top_k": 4}, 4), ({"top_p": 0.5}, 5), ({"typical_p": 0.25}, 3)], ids=str)
def test_among_equals_the_lowest_ids_are_kept(given, kept):
    row = np.zeros(10, np.float32)
    tokens = {sample.token for sample in draw_many(SamplingParams(temperature=1.0, **given), row, range(300))}
    assert tokens == set(range(kept))


def test_penalties_count_prompt_and_answer_as_they_should():
    row = np.full(200, -5.0, np.float32)
    row[[1, 2, 3]] = [3.0, 2.9, -4.0]
    repetition = Sampler(SamplingParams(repetition_penalty=1.5), 200, [1, 1])
    assert repetition.sample(row).token == 2  # 3 / 1.5 = 2
    repetition.accept(2)
    assert repetition.sample(row).token == 1
    frequency = Sampler(SamplingParams(frequency_penalty=0.06), 200, [1])
    assert frequency.sample(row).token == 1, "the prompt does not count"
    frequency.accept(1)
    assert frequency.sample(row).token == 1
    frequency.accept(1)
    assert frequency.sample(row).token == 2
    presence = Sampler(SamplingParams(presence_penalty=0.06), 200, [])
    for _ in range(2):
        presence.accept(1)
    assert presence.sample(row).token == 1, "presence counts once"


def test_bias_forbids_and_forces():
    row = np.linspace(5, -5, 500).astype(np.float32)
    forbidden = Sampler(SamplingParams(temperature=1.0, logit_bias=dict.fromkeys(range(499), -100.0), seed=1), 500, [])
    assert forbidden.sample(row).token == 499
    forced = SamplingParams(temperature=1.0, logit_bias={490: 100.0, 495: math.inf, 0: 50.0}, top_p=0.99)
    assert {sample.token for sample in draw_many(forced, row, range(200))} == {490, 495}


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 99, 100])
def test_a_row_with_no_numbers_fails_alone(bad, place):
    logits = np.random.default_rng(0).normal(0, 1, (3, 101)).astype(np.float32)
    logits[1, place] = bad
    params = SamplingParams(temperature=1.0, seed=1, logit_bias={place: -100.0})
    samples = sample_rows([Sampler(params, 101, []) for _ in range(3)], logits, [0, 1, 2])
    assert samples[0].error is samples[2].error is None
    assert samples[1].token == -1
    assert isinstance(samples[1].error, StageFailed)
    with pytest.raises(StageFailed, match="NaN"):
        Sampler(params, 101, []).sample(logits[1])


def test_a_row_with_nothing_left_is_an_error():
    everything = SamplingParams(temperature=1.0, logit_bias=dict.fromkeys(range(70), -100.0))
    with pytest.raises(InvalidInput, match="logit_bias: no token is left"):
        Sampler(everything, 70, []).sample(np.zeros(70, np.float32))
    with pytest.raises(InvalidInput, match="the model's logits: no token is left"):
        Sampler(SamplingParams(temperature=1.0), 70, []).sample(np.full(70, -np.inf, np.float32))


def test_extreme_numbers_stay_numbers():
    row = np.array([3e38, -3e38, 0, 1e-40, -np.inf], np.float32)
    for extreme in (
        {"temperature": 100.0},
        {"temperature": 1e-300},
        {"temperature": 1.0, "repetition_penalty": 1e-300},
        {"temperature": 1.0, "top_p": 1e-300, "typical_p": 1e-300},
        {"temperature": 1.0, "min_p": 1.0, "typical_p": 0.5},
        {"temperature": 1e-300, "typical_p": 0.5, "top_p": 0.5, "logprobs": 5},
    ):
        params = SamplingParams(seed=1, **extreme)
        params.check(5)
        assert Sampler(params, 5, [0]).sample(row).token == 0, extreme


def test_rows_and_tokens_of_another_size_are_refused():
    sampler = Sampler(SamplingParams(temperature=1.0), 10, [])
    for logits, row in ((np.zeros((1, 11), np.float32), 0), (np.zeros((1, 10), np.float32), 1)):
        with pytest.raises(InvalidInput, match="10 logits"):
            sample_rows([sampler], logits, [row])
    for token in (-1, 10):
        with pytest.raises(InvalidInput, match="below 10"):
            sampler.accept(token)
        with pytest.raises(InvalidInput, match="below 10"):
            Sampler(SamplingParams(repetition_penalty=2.0), 10, [token])
    assert sample_rows([], np.zeros((0, 10), np.float32), []) == []
