"""Parameters out of range are refused by name, whatever their type, and unknown ones too."""

from __future__ import annotations

import contextlib
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.llm.params import Grammar, SamplingParams

VOCAB = 100
HUGE = 10**5000

BAD = {
    "max_tokens": [0, -1, 2**31, HUGE, 1.5, "7", True, math.inf],
    "temperature": [-0.1, 100.5, math.nan, math.inf, -math.inf, HUGE, "hot", None, [], True],
    "top_k": [-1, 2**31, HUGE, 1.0, math.nan, None],
    "top_p": [0, -0.1, 1.1, math.nan, math.inf, None, "1"],
    "min_p": [-1e-9, 1.1, math.nan, None],
    "typical_p": [0.0, 1.1, math.nan, None],
    "repetition_penalty": [0, -1, 101, math.nan, math.inf, None],
    "presence_penalty": [-101, 101, math.nan, -math.inf, None],
    "frequency_penalty": [-101, 101, math.nan, math.inf, None],
    "logprobs": [-1, 21, 0.5, "5", True, HUGE],
    "n": [0, -1, 65, 1.0, None, HUGE],
    "lookup": [-1, 17, None, 0.5],
    "seed": [2**64, -(2**63) - 1, HUGE, 0.5, math.nan, "x"],
    "stop": [("",), (HUGE,), ("a",) * 17, "text", ("a", 1), None, 5, ("x" * 10_000, "")],
    "stop_token_ids": [(-1,), (VOCAB,), (HUGE,), (1.0,), ("1",), (True,), 7, None],
    "grammar": [Grammar("x", "a"), Grammar("regex", 5), "a", {"kind": "regex"}],
    "logit_bias": [
        {-1: 0.0},
        {VOCAB: 1.0},
        {HUGE: 1.0},
        {1: math.nan},
        {1: "x"},
        {1: None},
        {1: HUGE},
        {"1": 1.0},
        {1.5: 1.0},
    ],
}
GOOD = {
    "max_tokens": [None, 1, 2**31 - 1, np.int64(5)],
    "temperature": [0, 0.0, 1e-300, 100, np.float32(0.5)],
    "top_k": [0, 2**31 - 1],
    "top_p": [1e-300, 1],
    "min_p": [0, 1.0],
    "typical_p": [0.5, 1],
    "repetition_penalty": [1e-9, 100],
    "presence_penalty": [-100, 100.0],
    "frequency_penalty": [-100, 100.0],
    "logprobs": [None, 0, 20],
    "n": [1, 64],
    "lookup": [0, 16],
    "seed": [None, 0, -(2**63), 2**64 - 1],
    "stop": [(), ("a",) * 16, ["\ud800"], ("x" * 100_000,)],
    "stop_token_ids": [(), (0, VOCAB - 1)],
    "grammar": [None, Grammar("json_object")],
    "logit_bias": [{}, {0: -math.inf, VOCAB - 1: math.inf, 5: -1e300}],
}


def test_every_number_and_list_is_tried():
    others = {"ignore_eos"}
    assert set(BAD) == set(GOOD) == set(SamplingParams.__struct_fields__) - others


def _each(values):
    return [pytest.param(name, value, id=f"{name}{i}") for name in values for i, value in enumerate(values[name])]


@pytest.mark.parametrize(("name", "value"), _each(BAD))
def test_what_is_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidInput, match=name) as caught:
        SamplingParams(**{name: value}).check(VOCAB)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("name", "value"), _each(GOOD))
def test_what_is_in_range_is_taken(name, value):
    SamplingParams(**{name: value}).check(VOCAB)


@pytest.mark.parametrize(
    "text",
    [
        '{"heat": 1}',
        '{"temperature": "1"}',
        '{"n": 1.5}',
        '{"grammar": {"kind": "x"}}',
        '{"grammar": {"kind": "regex", "flags": 1}}',
        '{"stop": [1]}',
        '{"seed": true}',
    ],
)
def test_decoders_refuse_unknown_fields_and_other_types(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=SamplingParams)


def test_what_json_may_say_is_decoded():
    text = '{"temperature": 1, "logit_bias": {"5": -100}, "stop": ["a"], "grammar": {"kind": "regex", "text": "a"}}'
    params = msgspec.json.decode(text, type=SamplingParams)
    params.check(VOCAB)
    assert (params.logit_bias, params.stop, params.grammar) == ({5: -100}, ("a",), Grammar("regex", "a"))


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(BAD)), value=anything)
def test_any_value_passes_or_is_invalid_input(name, value):
    with contextlib.suppress(InvalidInput):
        SamplingParams(**{name: value}).check(VOCAB)
