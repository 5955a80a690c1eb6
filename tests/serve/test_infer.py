import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, Unavailable
from headrace.serve.infer import Infer
from headrace.serve.protocol import Payload, TensorSpec

F32 = np.dtype(np.float32)


class Scale:
    inputs = (TensorSpec("x", F32, (-1, -1)),)
    outputs = (TensorSpec("y", F32, (-1, -1)),)

    def __init__(self, factor=2, closed=False):
        self.factor, self.closed, self.calls = factor, closed, 0

    async def infer(self, tensors, ctx):
        self.calls += 1
        if self.closed:
            raise Unavailable("closed")
        return {"y": tensors["x"] * self.factor}


class Two(Scale):
    inputs = (*Scale.inputs, TensorSpec("k", F32, (-1, 1)))


def bound(model, **options):
    stage = Infer("m", **options)
    stage.bind(lambda name: model)
    return stage


async def test_maps_names_both_ways():
    stage = bound(Scale(), inputs={"x": "image"}, outputs={"y": "scores"})
    answer = await stage.process(Payload(tensors={"image": np.ones((2, 3), np.float32)}), Context())
    assert answer.tensors["scores"].tolist() == [[2, 2, 2]] * 2
    assert set(answer.tensors) == {"image", "scores"}


async def test_ragged_rows_keep_their_order_and_shapes():
    rows = [np.full(n, n, np.float32) for n in (3, 1, 2, 1)]
    answer = await bound(Scale()).process(Payload(tensors={"x": rows}), Context())
    assert [row.tolist() for row in answer.tensors["y"]] == [[6, 6, 6], [2], [4, 4], [2]]
    assert (await bound(Scale()).process(Payload(tensors={"x": []}), Context())).tensors["y"] == []


async def test_ragged_inputs_must_agree():
    row = np.ones(1, np.float32)
    for tensors in ({"x": [row, row], "k": [row]}, {"x": [row], "k": np.ones((1, 1), np.float32)}):
        with pytest.raises(InvalidInput, match="model 'm': ragged inputs need the same number of rows each"):
            await bound(Two()).process(Payload(tensors=tensors), Context())


async def test_a_missing_tensor_is_told_with_those_that_are_there():
    with pytest.raises(InvalidInput, match="model 'm' needs tensor 'x'; the payload has: a, b"):
        await bound(Scale()).process(Payload(tensors={"b": np.ones(1), "a": np.ones(1)}), Context())


async def test_a_model_closed_by_a_reload_hands_over_to_its_successor():
    old, new = Scale(closed=True), Scale(3)
    served = iter([old, new, old, new])
    stage = Infer("m")
    stage.bind(lambda name: next(served))
    for rows in (np.ones((1, 1), np.float32), [np.ones(1, np.float32)]):
        answer = await stage.process(Payload(tensors={"x": rows}), Context())
        assert float(answer.tensors["y"][0][0]) == 3


async def test_a_closed_model_without_successor_is_unavailable():
    model = Scale(closed=True)
    with pytest.raises(Unavailable):
        await bound(model).process(Payload(tensors={"x": np.ones((1, 1), np.float32)}), Context())
    assert model.calls == 1


async def test_use_without_a_repository_or_a_name_is_told():
    with pytest.raises(Unavailable, match="'m' is not bound"):
        await Infer("m").process(Payload(), Context())
    with pytest.raises(ConfigError):
        Infer("")


class Scores(Scale):
    async def infer(self, tensors, ctx):
        return {"y": np.stack([tensors["x"], -tensors["x"], tensors["x"] * 0], axis=-1)}


@pytest.mark.parametrize("ragged", [True, False])
async def test_best_keeps_the_class_and_its_score_only(ragged):
    x = np.array([[1, -2, 0]], np.float32)
    stage = bound(Scores(), best=["y"])
    answer = await stage.process(Payload(tensors={"x": [x[0]] if ragged else x}), Context())
    pairs = answer.tensors["y"][0]
    assert pairs.tolist() == [[0, 1], [1, 2], [0, 0]]
    assert pairs.dtype == np.float32


async def test_best_names_an_output_of_the_model():
    with pytest.raises(ConfigError, match="`best` names 'z'; model 'm' gives y"):
        await bound(Scores(), best=["z"]).process(Payload(tensors={"x": np.ones((1, 1), np.float32)}), Context())
