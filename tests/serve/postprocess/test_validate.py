import math

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, RejectedResult
from headrace.serve.postprocess.validate import Confidence, Finite, Range, Schema
from headrace.serve.protocol import Payload
from headrace.testing.stage import check_options, check_stage

NAN = np.array([[1, 2], [np.nan, 0], [3, np.inf]], np.float32)


def run(stage, **fields):
    return stage.process(Payload(**fields), Context())


def test_finite_rejects_and_says_where():
    with pytest.raises(RejectedResult) as caught:
        run(Finite(), tensors={"n": np.arange(3), "y": NAN})
    assert str(caught.value) == "tensor 'y' row 1 holds nan, which is not finite (and 1 more rows)"


def test_finite_drops_the_rows_of_every_tensor_of_that_length():
    rows = [np.ones(i) for i in range(3)]
    scale = np.float32([1, 2])
    got = run(Finite(["y"], "drop"), tensors={"y": NAN, "n": np.arange(3), "r": rows, "scale": scale}).tensors
    assert got["y"].tolist() == [[1, 2]]
    assert got["n"].tolist() == [0]
    assert got["r"] == rows[:1]
    assert got["scale"] is scale


def test_finite_flags_in_metadata_and_result():
    got = run(Finite(action="flag"), tensors={"y": NAN}, result={"text": "a"})
    assert got.result == {"text": "a", "flags": got.metadata["flags"]}
    assert len(got.metadata["flags"]) == 1
    assert got.tensors["y"] is NAN


def test_finite_takes_ragged_rows_scalars_and_no_rows():
    ragged = [np.ones(2), np.array([1, np.inf]), np.ones(0)]
    assert len(run(Finite(["y"], "drop"), tensors={"y": ragged}).tensors["y"]) == 2
    run(Finite(), tensors={"a": np.float32(1).reshape(()), "b": np.empty((0, 3)), "c": np.empty((3, 0)), "d": []})
    with pytest.raises(RejectedResult, match="holds inf"):
        run(Finite(["a"]), tensors={"a": np.array(np.inf)})


def test_a_tensor_that_should_be_checked_and_is_absent_is_a_refusal():
    with pytest.raises(RejectedResult, match="tensor 'y' is not there to be checked; there are: x"):
        run(Finite(["y"]), tensors={"x": np.ones(1)})


def test_range_has_inclusive_ends_and_nan_is_outside():
    run(Range("p", 0, 1), tensors={"p": np.array([0, 0.5, 1])})
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(RejectedResult, match=r"row 1 holds .*, which is outside \[0, 1\]"):
            run(Range("p", 0, 1), tensors={"p": np.array([0.5, bad])})
    assert run(Range("p", high=1, action="drop"), tensors={"p": np.array([-9, 2])}).tensors["p"].tolist() == [-9]


def test_schema_names_the_place():
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    run(Schema(schema), result={"age": 3})
    with pytest.raises(RejectedResult, match=r"at \$\.age: '3' is not of type 'integer'"):
        run(Schema(schema), result={"age": "3"})
    with pytest.raises(RejectedResult, match="'age' is a required property"):
        run(Schema(schema), result={})
    assert "is not of type" in run(Schema(schema, "flag"), result={"age": "3"}).result["flags"][0]
    with pytest.raises(RejectedResult) as caught:
        run(Schema({"type": "integer"}), result="x" * 10_000)
    assert len(str(caught.value)) < 400


def test_schema_is_checked_when_the_pipeline_is_built_and_fetches_nothing():
    with pytest.raises(ConfigError, match="is not a JSON Schema"):
        Schema({"type": "strnig"})
    with pytest.raises(ConfigError, match="the schema refers to what is not in it"):
        run(Schema({"$ref": "http://localhost:1/schema.json"}), result=1)


ITEMS = [{"label": "a", "confidence": 0.9}, {"label": "b", "confidence": 0.2}, {"label": "c"}]


def test_confidence_rejects_drops_and_flags():
    result = {"lines": ITEMS, "width": 3}
    with pytest.raises(RejectedResult, match=r"^lines\[1\]: confidence 0\.2 is below 0\.5 \(and 1 more\)$"):
        run(Confidence(0.5, "lines"), result=result)
    assert run(Confidence(0.5, "lines", action="drop"), result=result).result == {"lines": ITEMS[:1], "width": 3}
    flagged = run(Confidence(0.5, "lines", action="flag"), result=result).result
    assert flagged["lines"] == ITEMS
    assert len(flagged["flags"]) == 1
    assert result == {"lines": ITEMS, "width": 3}


def test_confidence_of_a_list_and_of_one_item():
    assert run(Confidence(0.5, action="drop"), result=ITEMS).result == ITEMS[:1]
    assert run(Confidence(0.5), result=ITEMS[0]).result == ITEMS[0]
    for action in ("reject", "drop"):
        with pytest.raises(RejectedResult, match=r"result: score nan is below 0\.5"):
            run(Confidence(0.5, field="score", action=action), result={"score": math.nan})
    for result in (None, {}, {"lines": 3}):
        with pytest.raises(RejectedResult, match="result has no list 'lines'"):
            run(Confidence(0.5, "lines"), result=result)


@pytest.mark.parametrize(
    ("op", "good", "bad"),
    [
        ("validate.finite", {}, [{"action": "repair"}, {"tensors": "y"}]),
        (
            "validate.range",
            {"tensor": "y", "low": 0},
            [{"tensor": "y"}, {"tensor": "y", "low": 2, "high": 1}, {"low": 1}],
        ),
        (
            "validate.schema",
            {"schema": {"type": "object"}},
            [{}, {"schema": {"type": 3}}, {"schema": {}, "action": "drop"}],
        ),
        ("validate.confidence", {"floor": 0.5}, [{}, {"floor": "high"}, {"floor": 1, "action": "x"}]),
    ],
)
def test_options(op, good, bad):
    check_options(op, good, bad)


def test_contracts():
    def answer():
        return Payload(tensors={"y": np.ones((2, 2))}, result=[{"confidence": 0.9}])

    bad = [lambda: Payload(tensors={"y": NAN}, result=[{"confidence": 0.1}])]
    check_stage(Finite(), answer, refuses=bad)
    check_stage(Range("y", 0, 1), answer, refuses=[*bad, Payload])
    check_stage(Confidence(0.5), answer, refuses=[*bad, Payload])
    check_stage(Schema({"type": "array"}), answer, refuses=[Payload])
