"""Not run: checked by mypy as a user's code would be. Each line states the type that the public interface gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import headrace
from headrace.core.context import Context
from headrace.core.telemetry import Registry, render
from headrace.errors import HeadraceError, InvalidInput, MissingExtra, Overloaded
from headrace.serve.config import BatchingConfig, ModelConfig, load_config
from headrace.serve.infer import Infer, ModelResolver
from headrace.serve.protocol import Array, Backend, Payload, Ragged, Stage, Tensors, TensorSpec


class Upper:
    """A user's synchronous stage."""

    inline = True

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        payload.text = payload.text.upper()
        return payload


class Later:
    """A user's asynchronous stage, which also asks for models."""

    def bind(self, models: ModelResolver) -> None:
        self._models = models

    async def process(self, payload: Payload, ctx: Context, /) -> Payload:
        outputs = await self._models("m").infer({"x": np.zeros((1, 4), np.float32)}, ctx)
        assert_type(outputs, dict[str, Array])
        return payload


class Doubler:
    """A user's backend."""

    inputs: tuple[TensorSpec, ...] = (TensorSpec("x", np.dtype("float32"), (-1, 4)),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("y", np.dtype("float32"), (-1, 4)),)
    thread_safe = True

    def load(self) -> None: ...

    def warm(self) -> None: ...

    def infer(self, tensors: Tensors, /) -> Tensors:
        return {"y": tensors["x"] * 2}

    def drain(self) -> None: ...

    def free(self) -> None: ...


stages: list[Stage] = [Upper(), Later(), Infer("m")]
backend: Backend = Doubler()

payload = Payload(text="a")
assert_type(payload.tensors, dict[str, Array | Ragged])
assert_type(payload.result, Any)

context = Context("id", timeout_s=1.0)
assert_type(context.remaining_s(), float | None)
assert_type(context.error, HeadraceError | None)
undo = context.on_cancel(lambda error: print(error.http_status))
assert_type(undo(), None)

config = load_config(Path("headrace.toml"))
assert_type(config, ModelConfig)
assert_type(config.batching, BatchingConfig)
assert_type(render(Registry()), tuple[bytes, str])
assert_type(headrace.__version__, str)

try:
    context.check()
except Overloaded as error:
    assert_type(error.retry_after_s, float)
except MissingExtra as error:
    assert_type(error.extra, str)
except InvalidInput as error:
    assert_type(error.grpc_status, str)
