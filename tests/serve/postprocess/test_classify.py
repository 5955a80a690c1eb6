"""The most probable classes of a classifier."""

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.postprocess.classify import TopClasses, softmax
from headrace.serve.protocol import Payload


def classes(scores, **options):
    return TopClasses("scores", **options).process(Payload(tensors={"scores": np.asarray(scores)}), Context()).result


def test_softmax_sums_to_one_even_for_huge_logits():
    found = softmax(np.array([[1e4, 1e4 - np.log(3), -1e4]], np.float32))
    np.testing.assert_allclose(found, [[0.75, 0.25, 0.0]], atol=1e-3)


def test_best_first_with_labels():
    result = classes([[0.1, 2.0, 1.0]], k=2, labels=["cat", "dog", "hen"])
    assert [(c["label"], c["index"]) for c in result["classes"]] == [("dog", 1), ("hen", 2)]
    assert result["classes"][0]["probability"] == pytest.approx(0.6590, abs=1e-3)


def test_probabilities_pass_unchanged_and_rows_stay_apart():
    result = classes([[0.2, 0.8], [0.9, 0.1]], k=5, logits=False)
    assert [[c["label"] for c in row] for row in result["rows"]] == [["1", "0"], ["0", "1"]]
    assert result["rows"][1][0]["probability"] == 0.9


def test_what_is_wrong_is_told():
    with pytest.raises(ConfigError, match="k must be at least 1"):
        TopClasses("scores", k=0)
    with pytest.raises(InvalidInput, match="2 labels for 3 classes"):
        classes([[1.0, 2.0, 3.0]], labels=["a", "b"])
    for tensors in ({}, {"scores": np.zeros(3)}, {"scores": np.zeros((0, 3))}, {"scores": [np.zeros(3)]}):
        with pytest.raises(InvalidInput, match=r"\(N, C\)"):
            TopClasses("scores").process(Payload(tensors=tensors), Context())
