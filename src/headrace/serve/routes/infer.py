"""`POST …/infer`, the hot path: bytes to tensors, through the model's batcher, tensors to bytes.

A small request never leaves the event loop. A large JSON body is read on a thread, and a large answer written on one,
so that nobody else waits for either; a large binary tensor is only viewed, which is as quick as a small one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.core.context import Context
from headrace.errors import HeadraceError, InvalidInput
from headrace.serve.codec.message import Request, Response
from headrace.serve.codec.oip import InferRequest, decode, encode
from headrace.serve.model import Model
from headrace.serve.protocol import Tensors
from headrace.serve.routes.body import body_of, timeout_of

__all__ = ["InferHandler"]

LARGE_BYTES = 256 * 1024
"""From here on reading or writing JSON takes longer (about a millisecond) than the hop to a thread and back."""

DEFINED = {"binary_data_output", "priority", "sequence_end", "sequence_id", "sequence_start", "timeout"}
"""The parameters that the protocol defines, which no backend is told of."""

LENGTH_HEADER = b"inference-header-content-length"


class InferHandler:
    """Answers infer requests. `find` resolves the path's parameters to a model."""

    def __init__(self, find: Callable[[dict[str, str]], Model], max_body_bytes: int) -> None:
        self._find = find
        self._max_body_bytes = max_body_bytes
        self._writing: set[asyncio.Task[None]] = set()

    def __call__(self, request: Request, params: dict[str, str]) -> Coroutine[Any, Any, None] | None:
        model = self._find(params)
        coded = b"content-encoding" in request.headers
        if coded or (len(request.body) >= LARGE_BYTES and LENGTH_HEADER not in request.headers):
            return self._read_on_thread(request, model)
        self._submit(request, model, *self._read(request))
        return None

    async def _read_on_thread(self, request: Request, model: Model) -> None:
        self._submit(request, model, *await asyncio.to_thread(self._read, request))

    def _read(self, request: Request) -> tuple[InferRequest, Tensors]:
        body = body_of(request, self._max_body_bytes) if b"content-encoding" in request.headers else request.body
        return decode(body, request.header(LENGTH_HEADER) if LENGTH_HEADER in request.headers else "")

    def _submit(self, request: Request, model: Model, asked: InferRequest, tensors: Tensors) -> None:
        ctx = request.ctx
        assert ctx is not None
        _refine(ctx, asked, timeout_of(request, model.config.timeout_s))

        def done(outputs: Tensors | None, error: HeadraceError | None) -> None:
            if error is not None:
                request.fail(error)
                return
            assert outputs is not None
            if sum([array.nbytes for array in outputs.values()]) >= LARGE_BYTES:
                task = asyncio.get_running_loop().create_task(self._write_on_thread(request, asked, model, outputs))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
                return
            try:
                _respond(request, *encode(asked, model.name, model.version, outputs))
            except Exception as refused:  # nobody above would answer
                request.fail(refused)

        given = asked.parameters
        model.submit(tensors, ctx, done, {key: given[key] for key in given.keys() - DEFINED} if given else None)

    async def _write_on_thread(self, request: Request, asked: InferRequest, model: Model, outputs: Tensors) -> None:
        try:
            _respond(request, *await asyncio.to_thread(encode, asked, model.name, model.version, outputs))
        except Exception as refused:
            request.fail(refused)


def _respond(request: Request, parts: tuple[bytes | memoryview, ...], headers: str) -> None:
    content_type = "application/octet-stream" if headers else "application/json"
    request.respond(Response(parts, content_type=content_type, headers=headers))


def _refine(ctx: Context, asked: InferRequest, timeout_s: float) -> None:
    """Take the protocol's id, `timeout` (microseconds) and `priority` (1 is served first, 0, the default, last)."""
    if asked.id:
        ctx.request_id = asked.id[:128]
    parameters = asked.parameters
    if parameters:
        if parameters.get("sequence_id"):
            raise InvalidInput("parameters.sequence_id: sequences are not supported")
        if "timeout" in parameters:
            timeout_s = min(timeout_s, _whole(parameters, "timeout") / 1e6 or timeout_s)
        if parameters.get("priority"):
            ctx.priority = (1 << 32) - _whole(parameters, "priority")
    ctx.limit(timeout_s)


def _whole(parameters: dict[str, Any], key: str) -> int:
    value = parameters[key]
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise InvalidInput(f"parameters.{key}: expected a whole number >= 0, got {value!r}")
    return value
