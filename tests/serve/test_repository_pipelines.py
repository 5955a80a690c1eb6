import asyncio

import pytest

from headrace.core.context import Context
from headrace.core.telemetry import render
from headrace.errors import ConfigError, Conflict, InvalidInput, NotFound, Unavailable
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload


async def test_unload_is_refused_while_a_pipeline_needs_the_model(disk, opened, factor, through, states):
    disk.loose("m", "1", 2)
    disk.pipeline("p")
    repository = await opened()
    with pytest.raises(Conflict, match="model 'm' is needed by 'p'"):
        await repository.unload("m")
    assert await through(repository) == 2
    await repository.unload("m", unload_dependents=True)
    assert states(repository) == {("m", "1"): "UNAVAILABLE", ("p", "1"): "UNAVAILABLE"}
    with pytest.raises(NotFound, match="'m' is unloaded"):
        repository.get("m")
    await repository.unload("m")
    await repository.load("p")
    assert await through(repository) == await factor(repository) == 2


async def test_a_pipeline_waits_for_its_model(disk, opened, through):
    disk.pipeline("p")
    repository = await opened()
    assert "pipeline 'p' needs a model: no model or pipeline 'm'" in repository.index()[0]["reason"]
    with pytest.raises(Unavailable):
        await repository.load("p")
    disk.loose("m", "1", 5)
    await repository.load("m")
    assert await through(repository) == 5


async def test_a_pipeline_that_names_a_pipeline_or_itself_is_told(disk, opened):
    disk.pipeline("p", model="p")
    disk.pipeline("q", model="p")
    repository = await opened()
    async with asyncio.timeout(10):
        for name in ("p", "q"):
            with pytest.raises(Unavailable, match="needs a model"):
                await repository.load(name)


async def test_a_bad_stage_fails_the_pipeline_by_name(disk, opened):
    disk.config("p", '[[stage]]\nop = "infer"\nwith = { modle = "m" }\n')
    repository = await opened()
    with pytest.raises(ConfigError, match="stage 'infer': unknown option 'modle'"):
        await repository.load("p")
    assert "unknown option 'modle'" in repository.index()[0]["reason"]


async def test_user_stages_lie_beside_the_pipeline_and_take_effect_on_reload(disk, opened):
    disk.config("p", '[[stage]]\nop = "stages:shout"\nwith = { mark = "!" }\n')
    code = disk.root / "p" / "stages.py"
    code.write_text(
        "def shout(payload, ctx, *, mark: str):\n    payload.text = payload.text.upper() + mark\n    return payload\n"
    )
    repository = await opened()
    assert (await repository.get("p").run(Payload(text="hi"), Context())).text == "HI!"
    assert repository.get("p").describe()["stages"][0]["op"] == "stages:shout"
    code.write_text(
        "def shout(payload, ctx, *, mark: str):\n    payload.text = mark + payload.text\n    return payload\n"
    )
    await repository.load("p")
    assert (await repository.get("p").run(Payload(text="hi"), Context())).text == "!hi"


async def test_stage_metrics_are_counted(disk, opened, through):
    disk.loose("m", "1", 2)
    disk.pipeline("p")
    repository = await opened()
    await through(repository)
    with pytest.raises(InvalidInput):
        await repository.get("p").run(Payload(), Context())
    text = render(repository.metrics.registry)[0].decode()
    assert 'headrace_stage_seconds_count{pipeline="p",stage="infer"} 2.0' in text
    assert 'headrace_stage_failures_total{error="InvalidInput",pipeline="p",stage="infer"} 1.0' in text
    assert "headrace_stage_threads_abandoned 0.0" in text


async def test_a_pipeline_from_the_repository_describes_itself(disk, opened):
    disk.loose("m", "1", 2)
    disk.pipeline("p")
    pipeline = (await opened()).get("p")
    assert isinstance(pipeline, Pipeline)
    assert pipeline.describe()["stages"] == [
        {"name": "infer", "op": "headrace.serve.infer:Infer", "after": [], "timeout_s": None}
    ]
