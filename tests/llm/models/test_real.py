"""The real models answer as llama.cpp does with the same files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.llm.batches import one_sequence
from headrace.llm.loader import load_model
from headrace.llm.reference import ReferenceExecutor

pytestmark = [pytest.mark.models, pytest.mark.slow]


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_the_likeliest_tokens_are_those_of_llama_cpp(checkout, real_model, name):
    """Prompts of 24 to 640 tokens of prose, code, tables and many scripts.

    llama.cpp rounds its activations to int8, so the numbers agree to about 0.1 in the logarithm, not to the last bit.
    """
    model, _, trace = load_model(real_model(name))
    executor = ReferenceExecutor(trace, model, n_pages=64, max_tokens=700, dtype=np.float32)
    for case in json.loads((checkout / "tests/golden/data/llama_cpp.json").read_text("utf-8"))[name]:
        last = np.array([len(case["tokens"]) - 1], np.int32)
        own = executor.step(one_sequence(case["tokens"], range(64), rows=last)).logits[0].astype(np.float64)
        logprobs = own - own.max() - np.log(np.exp(own - own.max()).sum())
        top = np.argsort(-logprobs)[:5]
        assert top[0] in case["top"][:5]
        assert case["top"][0] in top
        assert len(set(top.tolist()) & set(case["top"][:5])) >= 4
        np.testing.assert_allclose(logprobs[case["top"][:5]], case["logprobs"][:5], rtol=0, atol=0.5)
    executor.close()
    model.close()
