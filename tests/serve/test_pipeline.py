import asyncio
import json
import threading

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, DeadlineExceeded, Unavailable
from headrace.serve.config import ModelConfig, StageConfig
from headrace.serve.graph import Step
from headrace.serve.infer import Infer
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload, TensorSpec


def upper(payload, ctx):
    payload.text = payload.text.upper()
    return payload


async def exclaim(payload, ctx):
    payload.text += "!"
    return payload


class Scale:
    """A model that multiplies."""

    inputs = (TensorSpec("x", np.dtype(np.float32), (-1, 2)),)
    outputs = (TensorSpec("y", np.dtype(np.float32), (-1, 2)),)

    def __init__(self, factor):
        self.factor = factor

    async def infer(self, tensors, ctx):
        await asyncio.sleep(0)
        return {"y": tensors["x"] * self.factor}


def no_models(name):
    raise Unavailable(name)


async def test_a_pipeline_takes_stages_and_functions():
    pipeline = Pipeline("shout", [upper, exclaim])
    assert (await pipeline.run(Payload(text="hi"), Context())).text == "HI!"
    await pipeline.close()


def test_a_script_calls_it_without_a_loop():
    pipeline = Pipeline("shout", [upper, exclaim])
    assert [pipeline(Payload(text=t)).text for t in ("a", "b")] == ["A!", "B!"]
    asyncio.run(pipeline.close())


async def test_calling_it_inside_a_loop_is_told():
    pipeline = Pipeline("shout", [upper])
    with pytest.raises(ConfigError, match=r"use `await pipeline\.run"):
        pipeline(Payload())
    await pipeline.close()


def test_something_that_is_no_stage_is_told():
    with pytest.raises(ConfigError, match="expected a stage or a function of \\(payload, ctx\\), got int"):
        Pipeline("p", [3])


async def test_an_ensemble_of_two_models_in_ten_lines():
    def mean(payload, ctx):
        payload.result = ((payload.tensors["a"] + payload.tensors["b"]) / 2).tolist()
        return payload

    pipeline = Pipeline(
        "ensemble",
        [
            Step(Infer("double", outputs={"y": "a"}), "double", ()),
            Step(Infer("triple", outputs={"y": "b"}), "triple", ()),
            Step(mean, "mean", ("double", "triple")),
        ],
    )
    pipeline.bind({"double": Scale(2), "triple": Scale(3)}.__getitem__)
    assert pipeline.models == ("double", "triple")
    answer = await pipeline.run(Payload(tensors={"x": np.ones((1, 2), np.float32)}), Context())
    assert answer.result == [[2.5, 2.5]]
    await pipeline.close()


async def test_pipelines_nest_and_pass_their_models_on():
    inner = Pipeline("inner", [Infer("m")])
    outer = Pipeline("outer", [upper, inner])
    outer.bind({"m": Scale(2)}.__getitem__)
    assert outer.models == ("m",)
    answer = await outer.run(Payload(text="a", tensors={"x": np.ones((1, 2), np.float32)}), Context())
    assert (answer.text, answer.tensors["y"].tolist()) == ("A", [[2, 2]])
    await outer.close()
    await inner.close()


async def test_from_config_names_stages_and_follows_after():
    config = ModelConfig(
        stage=[
            StageConfig(op="infer", options={"model": "a", "outputs": {"y": "ya"}}),
            StageConfig(op="infer", after=[], options={"model": "b", "outputs": {"y": "yb"}}),
            StageConfig(op="validate.finite", name="end", after=["infer", "infer-2"], timeout_s=5),
        ],
        consumes="bytes",
    )
    pipeline = Pipeline.from_config("p", config, {"a": Scale(2), "b": Scale(3)}.__getitem__)
    described = pipeline.describe()
    assert json.loads(json.dumps(described)) == described
    assert [(s["name"], s["after"]) for s in described["stages"]] == [
        ("infer", []),
        ("infer-2", []),
        ("end", ["infer", "infer-2"]),
    ]
    assert described["models"] == ["a", "b"]
    assert described["runs"][-1] == {"where": "thread", "stages": ["end"]}
    answer = await pipeline.run(Payload(tensors={"x": np.ones((1, 2), np.float32)}), Context())
    assert set(answer.tensors) == {"x", "ya", "yb"}
    assert pipeline.config.consumes == "bytes"
    await pipeline.close()


async def test_a_bad_stage_closes_those_made_before_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "closed = []\n"
        "class A:\n"
        "    def __init__(self, log: str): self.log = log\n"
        "    def process(self, payload, ctx): return payload\n"
        "    def close(self): open(self.log, 'x').close()\n"
    )
    log = tmp_path / "closed"
    config = ModelConfig(stage=[StageConfig(op="mine:A", options={"log": str(log)}), StageConfig(op="nothing")])
    with pytest.raises(ConfigError, match="no op 'nothing'"):
        Pipeline.from_config("p", config, no_models, tmp_path)
    assert log.exists()


async def test_the_pipelines_own_limit_holds_without_a_deadline_and_leaves_the_caller_alone():
    async def sleep(payload, ctx):
        assert ctx.remaining_s() <= 0.02
        await asyncio.sleep(60)

    pipeline = Pipeline("p", [Step(sleep, "slow")], timeout_s=0.02)
    ctx = Context("r")
    with pytest.raises(DeadlineExceeded, match="stage 'slow': pipeline 'p': request r: deadline exceeded"):
        await pipeline.run(Payload(), ctx)
    assert ctx.error is None
    await pipeline.close()


async def test_closing_waits_for_runs_then_closes_each_stage_once():
    class Held:
        closed = 0
        started, go = threading.Event(), threading.Event()

        def process(self, payload, ctx):
            self.started.set()
            assert self.go.wait(20)
            assert not self.closed
            return payload

        def close(self):
            self.closed += 1

    stage = Held()
    pipeline = Pipeline("p", [stage])
    run = asyncio.create_task(pipeline.run(Payload(text="x"), Context()))
    async with asyncio.timeout(10):
        while not stage.started.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.001)
    close = asyncio.create_task(pipeline.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="pipeline 'p' is closed"):
        await pipeline.run(Payload(), Context())
    assert not close.done()
    stage.go.set()
    assert (await run).text == "x"
    await close
    await pipeline.close()
    assert stage.closed == 1


async def test_a_stage_that_fails_to_close_does_not_keep_the_others_open(caplog):
    class Bad:
        def process(self, payload, ctx):
            return payload

        def close(self):
            raise OSError("stuck")

    class Good(Bad):
        closed = False

        def close(self):
            self.closed = True

    good = Good()
    await Pipeline("p", [Bad(), good]).close()
    assert good.closed
    assert "stuck" in caplog.text
