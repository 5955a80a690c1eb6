"""Greedy CTC: merging, blanks, confidence, and where the labels come from."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, Unavailable
from headrace.serve.infer import best_pairs
from headrace.serve.postprocess.ctc import GreedyCtc, greedy_decode
from headrace.serve.protocol import Payload

LABELS = ["", "a", "b", " "]


def steps(path, sure=0.9):
    """Probabilities whose best class a step is `path`."""
    found = np.full((len(path), len(LABELS)), (1 - sure) / (len(LABELS) - 1), np.float32)
    found[np.arange(len(path)), path] = sure
    return found


@pytest.mark.parametrize(
    ("path", "text"),
    [([], ""), ([0, 0], ""), ([1], "a"), ([1, 1, 1], "a"), ([1, 0, 1], "aa"), ([0, 1, 2, 2, 0, 2], "abb"),
     ([1, 3, 3, 2], "a b"), ([2, 2, 0, 0, 2, 1, 1], "bba")],
)  # fmt: skip
def test_paths(path, text):
    assert greedy_decode(best_pairs(steps(path).reshape(-1, 4)), LABELS)[0] == text


@given(st.lists(st.sampled_from("ab "), max_size=30), st.data())
def test_any_stretching_of_a_text_decodes_to_it(text, data):
    path = []
    for character in text:
        path += [0] * data.draw(st.integers(1, 3)) + [LABELS.index(character)] * data.draw(st.integers(1, 3))
    assert greedy_decode(best_pairs(steps(path).reshape(-1, 4)), LABELS)[0] == "".join(text)


def test_confidence_is_the_mean_of_the_kept_steps():
    both = np.concatenate([steps([0], 0.97), steps([1], 0.6), steps([1], 0.99), steps([2], 0.8)])
    text, confidence = greedy_decode(best_pairs(both), LABELS)
    assert text == "ab"
    assert confidence == pytest.approx((0.6 + 0.8) / 2)
    assert greedy_decode(best_pairs(steps([0, 0])), LABELS) == ("", 0.0)


def test_stage_takes_labels_from_the_model_that_serves_now():
    serving = {"rec": SimpleNamespace(metadata={"character": "a\nb"})}
    stage = GreedyCtc(model="rec")
    stage.bind(serving.__getitem__)
    payload = stage.process(Payload(tensors={"steps": [steps([1, 3, 2]), steps([2])]}), Context())
    assert payload.metadata["ctc.texts"] == ["a b", "b"]
    assert payload.metadata["ctc.confidences"] == pytest.approx([0.9, 0.9])
    assert "steps" not in payload.tensors
    serving["rec"] = SimpleNamespace(metadata={"character": "x\ny"})
    payload = stage.process(Payload(tensors={"steps": np.stack([steps([1, 2])])}), Context())
    assert payload.metadata["ctc.texts"] == ["xy"]


def test_no_rows_are_no_texts():
    payload = GreedyCtc(labels=["a"]).process(Payload(tensors={"steps": []}), Context())
    assert payload.metadata["ctc.texts"] == []


def test_stage_says_what_is_wrong():
    for options in ({}, {"model": "rec", "labels": ["a"]}):
        with pytest.raises(ConfigError, match="either `model`"):
            GreedyCtc(**options)
    with pytest.raises(InvalidInput, match=r"\(T, 2\), got \(1, 4\)"):
        GreedyCtc(labels=["a"]).process(Payload(tensors={"steps": [steps([1])]}), Context())
    with pytest.raises(InvalidInput, match="needs tensor"):
        GreedyCtc(labels=["a"]).process(Payload(), Context())
    with pytest.raises(Unavailable, match="not bound"):
        GreedyCtc(model="rec").process(Payload(tensors={"steps": []}), Context())
    stage = GreedyCtc(model="rec")
    stage.bind(lambda name: SimpleNamespace(metadata={}))
    with pytest.raises(ConfigError, match="no 'character' in its metadata"):
        stage.process(Payload(tensors={"steps": []}), Context())


def test_pairs_decode_like_the_probabilities_they_come_from():
    rows = [steps([0, 1, 1, 2]), steps([3, 0, 2])]
    whole = GreedyCtc(labels=LABELS[1:]).process(Payload(tensors={"steps": rows}), Context())
    pairs = [best_pairs(row) for row in rows]
    reduced = GreedyCtc(labels=LABELS[1:], pairs=True).process(Payload(tensors={"steps": pairs}), Context())
    assert reduced.metadata == whole.metadata
    with pytest.raises(InvalidInput, match=r"\(T, 2\), got \(4, 4\)"):
        GreedyCtc(labels=["a"], pairs=True).process(Payload(tensors={"steps": rows}), Context())
