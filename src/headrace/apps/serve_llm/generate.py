"""`/generate` and the generate extension of the Open Inference Protocol for language models: text in, text out.

A name that is no language model's is left to the pipelines, which have the same endpoints.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.models import LanguageModel, LanguageModels
from headrace.apps.serve_llm.sampling import one_answer
from headrace.apps.serve_llm.sse import EventStream
from headrace.apps.serve_llm.wire import event, usage_body
from headrace.errors import InvalidInput, NotFound
from headrace.llm.generation import Generation
from headrace.serve.codec.message import Request
from headrace.serve.codec.router import Handler
from headrace.serve.routes.body import json_body, json_response

if TYPE_CHECKING:
    from headrace.llm.engine import Engine

__all__ = ["GenerateHandlers"]


class WhichModel(msgspec.Struct):
    model: str = ""


class GenerateRequest(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    model: str = ""
    parameters: dict[str, Any] = {}


class TritonGenerateRequest(msgspec.Struct, forbid_unknown_fields=True):
    text_input: str
    id: str = ""
    parameters: dict[str, Any] = {}


class GenerateHandlers:
    """Handlers; `pipelines` has those that answer for everything else, by path."""

    def __init__(self, models: LanguageModels, max_body_bytes: int, pipelines: dict[str, Handler]) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes
        self._pipelines = pipelines

    def plain(self, request: Request, params: dict[str, str]) -> object:
        """`POST /generate`."""
        name = json_body(request, WhichModel, self._max_body_bytes).model
        model = self._models.get(name) if name else self._only_one()
        if model is None:
            return self._pipelines["/generate"](request, params)
        asked = json_body(request, GenerateRequest, self._max_body_bytes)
        return self._answer(request, model, asked.text, asked.parameters, "text", {"model": model.name})

    def triton(self, request: Request, params: dict[str, str]) -> object:
        """`POST /v2/models/{model}/generate`."""
        model = self._models.get(params["model"])
        if model is None:
            return self._pipelines["/v2/models/{model}/generate"](request, params)
        asked = json_body(request, TritonGenerateRequest, self._max_body_bytes)
        if asked.parameters.get("stream"):
            raise InvalidInput(f"parameters.stream: use POST /v2/models/{model.name}/generate_stream")
        return self._answer(request, model, asked.text_input, asked.parameters, "text_output", _named(model, asked.id))

    async def triton_stream(self, request: Request, params: dict[str, str]) -> None:
        """`POST /v2/models/{model}/generate_stream`: an event for each piece of text."""
        model = self._models.find(params["model"])
        asked = json_body(request, TritonGenerateRequest, self._max_body_bytes)
        head = _named(model, asked.id)
        work = self._generation(request, model, asked.text_input, asked.parameters)
        async with work as generation, EventStream(request) as out:
            async for chunk in generation:
                last = {"finish_reason": chunk.finish_reason} if chunk.finish_reason else {}
                if chunk.text or last:
                    await out.send(event({**head, "text_output": chunk.text, **last}))

    def _only_one(self) -> LanguageModel | None:
        try:
            return self._models.only_one()
        except NotFound as error:  # what is not there is the name, not the model
            raise BadRequest("model", str(error).removeprefix("`model` ")) from None

    async def _answer(
        self,
        request: Request,
        model: LanguageModel,
        text: str,
        parameters: dict[str, Any],
        key: str,
        head: dict[str, Any],
    ) -> None:
        async with self._generation(request, model, text, parameters) as generation:
            (chunk,) = await generation.acollect()
        assert chunk.usage is not None
        answer = {**head, key: chunk.text, "finish_reason": chunk.finish_reason, "usage": usage_body(chunk.usage)}
        if generation.truncated_tokens:
            answer["truncated_tokens"] = generation.truncated_tokens
        request.respond(json_response(answer))

    @asynccontextmanager
    async def _generation(
        self, request: Request, model: LanguageModel, text: str, parameters: dict[str, Any]
    ) -> AsyncIterator[Generation]:
        parameters = {key: value for key, value in parameters.items() if key != "stream"}
        priority = parameters.pop("priority", None)
        if not isinstance(priority, int | None):
            raise BadRequest("parameters.priority", f"expected a whole number, got {priority!r}")
        sampling, truncate = one_answer(model.backend.sampling, parameters)
        ctx = self._models.under(request, model, None, priority)

        def begin(engine: Engine) -> Generation:
            return engine.generate(text, sampling, ctx=ctx, truncate=truncate)

        async with self._models.begin(request, model, begin, long=sampling.grammar is not None) as generation:
            with generation:
                yield generation


def _named(model: LanguageModel, id: str) -> dict[str, Any]:
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.model.version}
    return {"id": id, **head} if id else head
