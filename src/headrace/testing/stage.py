"""The contract of `Stage`, for implementers: a stage and payloads in, `AssertionError` or nothing out.

Use it in a test: `check_stage(MyStage(size=3), lambda: Payload(data=JPEG), refuses=[lambda: Payload(data=b"junk")])`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.context import Context
from headrace.errors import Cancelled, ConfigError, HeadraceError
from headrace.serve.config import StageConfig
from headrace.serve.infer import ModelResolver
from headrace.serve.ops import StageFactory
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload, Stage

__all__ = ["check_options", "check_stage"]

MakePayload = Callable[[], Payload]


def check_stage(
    stage: Stage,
    accepts: MakePayload,
    *,
    refuses: Sequence[MakePayload] = (),
    models: ModelResolver | None = None,
) -> Payload:
    """Run the stage as a pipeline does: once, many times at once, on bad input, and under a context that has ended.

    Args:
        stage: The stage; it is closed at the end if it has `close`.
        accepts: Makes a payload that the stage must accept; a new one at each call.
        refuses: Make payloads that it must refuse with an error of the Headrace tree that is the caller's (4xx).
        models: Resolves the models it asks for.

    Returns what it made of one accepted payload.
    """
    return asyncio.run(_check(stage, accepts, refuses, models))


def check_options(op: str, good: Mapping[str, Any], bad: Sequence[Mapping[str, Any]]) -> None:
    """An op takes the options `good`, and refuses each of `bad`, and an unknown one, with a `ConfigError` that names
    the stage."""
    StageFactory(None).create(StageConfig(op=op, name="under-test", options=dict(good)))
    for options in (*bad, {**good, "no_such_option": 1}):
        try:
            StageFactory(None).create(StageConfig(op=op, name="under-test", options=dict(options)))
        except ConfigError as error:
            _require("under-test" in str(error), f"the error must name the stage: {error}")
        else:
            raise AssertionError(f"{op} took the options {dict(options)}")


async def _check(
    stage: Stage, accepts: MakePayload, refuses: Sequence[MakePayload], models: ModelResolver | None
) -> Payload:
    _form(stage)
    pipeline = Pipeline("contract", [stage])
    if models is not None:
        pipeline.bind(models)
    try:
        answer = await pipeline.run(accepts(), Context())
        await _many(pipeline, accepts, answer)
        await _bad_input(pipeline, refuses)
        await _ended(pipeline, accepts)
        again = await pipeline.run(accepts(), Context())
        _require(_same(again, answer), "an error changed how the stage answers")
        return answer
    finally:
        await pipeline.close()


def _form(stage: Stage) -> None:
    process = getattr(stage, "process", None)
    _require(callable(process), f"{type(stage).__name__} has no method `process`")
    assert process is not None
    try:
        inspect.signature(process).bind(Payload(), Context())
    except TypeError as error:
        raise AssertionError(f"`process` must take (payload, ctx): {error}") from None
    coroutine = inspect.iscoroutinefunction(process)
    _require(not (coroutine and getattr(stage, "inline", False)), "`inline` is for plain functions, not coroutines")
    needs = getattr(stage, "needs", ())
    _require(isinstance(needs, tuple), f"`needs` must be a tuple of names, is {type(needs).__name__}")


async def _many(pipeline: Pipeline, accepts: MakePayload, expected: Payload) -> None:
    """One instance serves many requests at once: nothing of one may show in another."""
    answers = await asyncio.gather(*(pipeline.run(accepts(), Context()) for _ in range(16)))
    _require(len({id(answer) for answer in answers}) == len(answers), "two requests share one payload")
    _require(
        all(_same(answer, expected) for answer in answers), "requests at the same time changed each other's answer"
    )


async def _bad_input(pipeline: Pipeline, refuses: Sequence[MakePayload]) -> None:
    for i, make in enumerate(refuses):
        try:
            await pipeline.run(make(), Context())
        except HeadraceError as error:
            said = f"bad payload {i}: {type(error).__name__}: {error}"
            _require(400 <= error.http_status < 500, f"{said}; expected an error that blames the caller (4xx)")
            _require(len(str(error)) > len("stage 'x': "), f"{said}; the message must say what is wrong")
        else:
            raise AssertionError(f"bad payload {i} was accepted")


async def _ended(pipeline: Pipeline, accepts: MakePayload) -> None:
    ctx = Context()
    ctx.cancel()
    try:
        await pipeline.run(accepts(), ctx)
    except Cancelled:
        return
    raise AssertionError("a cancelled request was answered")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _same(left: Payload, right: Payload) -> bool:
    return (
        bytes(left.data) == bytes(right.data)
        and left.text == right.text
        and repr(left.result) == repr(right.result)
        and left.tensors.keys() == right.tensors.keys()
        and all(_equal(value, right.tensors[name]) for name, value in left.tensors.items())
    )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, list) or isinstance(right, list):
        return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
