"""Pipelines over HTTP: raw bytes in, JSON out; and `/generate` for pipelines that turn text into text."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.context import Context
from headrace.errors import InvalidInput, UnsupportedMedia
from headrace.serve.codec.message import Request
from headrace.serve.codec.router import Route
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload
from headrace.serve.repository import Repository
from headrace.serve.routes.body import body_of, json_body, json_response, operation, timeout_of

__all__ = ["pipeline_routes"]


class GenerateRequest(msgspec.Struct):
    """`text` for the pipeline `model` (may be left out when the server has one text pipeline only)."""

    text: str
    model: str = ""
    parameters: dict[str, Any] = {}


class TritonGenerateRequest(msgspec.Struct):
    text_input: str
    parameters: dict[str, Any] = {}


class PipelineRoutes:
    """Handlers over one repository."""

    def __init__(self, repository: Repository, max_body_bytes: int) -> None:
        self._repository = repository
        self._max_body_bytes = max_body_bytes

    def _pipeline(self, name: str) -> Pipeline:
        found = self._repository.get(name)
        if not isinstance(found, Pipeline):
            raise InvalidInput(f"{name!r} is a model, not a pipeline; use POST /v2/models/{name}/infer")
        return found

    async def run(self, request: Request, params: dict[str, str]) -> None:
        pipeline = self._pipeline(params["name"])
        media_type = request.header(b"content-type").partition(";")[0].strip().lower()
        if media_type == "multipart/form-data":
            raise UnsupportedMedia("send the bytes themselves (curl --data-binary @FILE), not multipart/form-data")
        data = body_of(request, self._max_body_bytes)
        if not len(data):
            raise InvalidInput(f"body: empty; pipeline {pipeline.name!r} takes {pipeline.config.consumes or 'bytes'}")
        payload = Payload(data=data, media_type=media_type)
        if pipeline.config.consumes == "text":
            payload.text = _text(data)
        answer = await pipeline.run(payload, _within(request, pipeline))
        request.respond(json_response(answer.result))

    def listed(self, request: Request, params: dict[str, str]) -> None:
        pipelines = [
            {
                "name": pipeline.name,
                "consumes": pipeline.config.consumes or "bytes",
                "description": pipeline.config.description,
                "stages": len(pipeline.config.stage),
            }
            for pipeline in self._repository.pipelines()
        ]
        request.respond(json_response({"pipelines": pipelines}))

    async def describe(self, request: Request, params: dict[str, str]) -> None:
        request.respond(json_response(self._pipeline(params["name"]).describe()))

    async def generate(self, request: Request, params: dict[str, str]) -> None:
        asked = json_body(request, GenerateRequest, self._max_body_bytes)
        pipeline = self._pipeline(asked.model) if asked.model else self._only_text_pipeline()
        text = await self._generate(request, pipeline, asked.text, asked.parameters)
        request.respond(json_response({"model": pipeline.name, "text": text}))

    async def generate_triton(self, request: Request, params: dict[str, str]) -> None:
        asked = json_body(request, TritonGenerateRequest, self._max_body_bytes)
        pipeline = self._pipeline(params["model"])
        text = await self._generate(request, pipeline, asked.text_input, asked.parameters)
        request.respond(json_response({"model_name": pipeline.name, "text_output": text}))

    async def _generate(self, request: Request, pipeline: Pipeline, text: str, parameters: dict[str, Any]) -> str:
        if pipeline.config.consumes != "text":
            raise InvalidInput(f"pipeline {pipeline.name!r} takes {pipeline.config.consumes or 'bytes'}, not text")
        payload = Payload(text=text, metadata={"parameters": parameters})
        answer = await pipeline.run(payload, _within(request, pipeline))
        return answer.result if isinstance(answer.result, str) else answer.text

    def _only_text_pipeline(self) -> Pipeline:
        found = [pipeline for pipeline in self._repository.pipelines() if pipeline.config.consumes == "text"]
        if len(found) != 1:
            names = ", ".join(pipeline.name for pipeline in found) or "none"
            raise InvalidInput(f"`model` must name a text pipeline; this server has: {names}")
        return found[0]


def pipeline_routes(repository: Repository, max_body_bytes: int) -> list[Route]:
    handlers = PipelineRoutes(repository, max_body_bytes)
    answers = {
        "400": "Wrong input: says what, where and what was expected", "404": "No such pipeline",
        "413": "Input too large", "415": "Media type not accepted", "422": "The answer failed validation",
        "429": "Queue full", "499": "Client gone", "500": "A stage failed; names it",
        "501": "An optional dependency is not installed", "503": "Draining", "504": "Deadline exceeded",
    }  # fmt: skip
    raw = {"application/octet-stream": {"type": "string", "format": "binary"}}
    text = {"type": "string"}
    generate = {"type": "object", "required": ["text"], "properties": {"text": text, "model": text}}
    triton = {"type": "object", "required": ["text_input"], "properties": {"text_input": text}}
    return [
        Route(
            "GET", "/v1/pipelines", handlers.listed,
            operation(
                "The pipelines that are ready", tag="pipelines",
                answers={"200": "`pipelines`: of each its name, what it consumes, its description and how many stages"},
            ),
        ),
        Route(
            "POST", "/v1/pipelines/{name}", handlers.run,
            operation("Run a pipeline on raw bytes", tag="pipelines", params=("name",), body=raw, answers=answers),
        ),
        Route(
            "GET", "/v1/pipelines/{name}", handlers.describe,
            operation(
                "The stages of a pipeline", tag="pipelines", params=("name",),
                answers={"400": "The name is a model's", "404": "No such pipeline"},
            ),
        ),
        Route(
            "POST", "/generate", handlers.generate,
            operation("Text to text", tag="pipelines", body={"application/json": generate}, answers=answers),
        ),
        Route(
            "POST", "/v2/models/{model}/generate", handlers.generate_triton,
            operation(
                "Text to text, as the generate extension has it", tag="pipelines", params=("model",),
                body={"application/json": triton}, answers=answers,
            ),
        ),
    ]  # fmt: skip


def _within(request: Request, pipeline: Pipeline) -> Context:
    assert request.ctx is not None
    request.ctx.limit(timeout_of(request, pipeline.config.timeout_s))
    return request.ctx


def _text(data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"body: expected UTF-8 text, got byte 0x{data[error.start]:02x} at {error.start}") from None
