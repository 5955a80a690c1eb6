"""The endpoints of language models: a repository in, a table of routes out, to be placed among the server's own."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headrace.apps.serve_llm.chat import ChatHandler
from headrace.apps.serve_llm.completions import CompletionHandler
from headrace.apps.serve_llm.embeddings import EmbeddingHandler
from headrace.apps.serve_llm.errors import openai_error
from headrace.apps.serve_llm.generate import GenerateHandlers
from headrace.apps.serve_llm.models import LanguageModel, LanguageModels, check_key
from headrace.serve.codec.message import Request
from headrace.serve.codec.router import Handler, Route
from headrace.serve.repository import Repository
from headrace.serve.routes.body import json_response, operation
from headrace.serve.server import Extension

__all__ = ["llm_routes"]

ANSWERS = {
    "400": "Wrong input: `param` names the field", "401": "API key missing or wrong", "404": "No such model",
    "413": "Body too large", "415": "Content-Encoding not supported", "429": "Queue full", "499": "Client gone",
    "500": "The model failed", "501": "An optional dependency is not installed", "503": "Loading, draining or failed",
    "504": "Deadline exceeded",
}  # fmt: skip

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_TEXT = {"type": "string"}
_PROMPTS = {"oneOf": [_TEXT, {"type": "array", "minItems": 1, "items": {}}]}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}, "content": {}},
    },
}


def llm_routes(repository: Repository, max_body_bytes: int, api_key: str = "") -> Extension:
    """What to give a `Server` as `extend`. With an `api_key`, whoever runs a model, language model or not, needs it."""

    def extend(routes: list[Route]) -> list[Route]:
        added = _routes(LanguageModels(repository), max_body_bytes, {route.path: route.handler for route in routes})
        if not api_key:
            return added
        runs = [route for route in routes if route.method == "POST" and not route.control]
        return [replace(route, handler=_guarded(route.handler, api_key)) for route in (*runs, *added)]

    return extend


def _routes(models: LanguageModels, max_body_bytes: int, old: dict[str, Handler]) -> list[Route]:
    generate = GenerateHandlers(models, max_body_bytes, old)

    def post(path: str, handler: Handler, summary: str, **fields: Any) -> Route:
        described = _with_errors(_described(summary, "openai", fields))
        return Route("POST", path, handler, described, error_response=openai_error)

    def get(path: str, handler: Handler, summary: str, params: tuple[str, ...] = ()) -> Route:
        answers = {status: ANSWERS[status] for status in ("401", "404", "503")}
        described = operation(summary, tag="openai", params=params, answers=answers)
        return Route("GET", path, handler, _with_errors(described), error_response=openai_error)

    def listed(request: Request, params: dict[str, str]) -> None:
        request.respond(json_response({"object": "list", "data": [_described_model(model) for model in models.all()]}))

    def one(request: Request, params: dict[str, str]) -> None:
        request.respond(json_response(_described_model(models.find(params["model"]))))

    named = {"model": _TEXT}
    triton = {"text_input": _TEXT, "parameters": {"type": "object"}}
    return [
        post(
            "/v1/chat/completions", ChatHandler(models, max_body_bytes),
            "Answer a chat", **named, messages=_MESSAGES,
        ),
        post(
            "/v1/completions", CompletionHandler(models, max_body_bytes),
            "Continue a text", **named, prompt=_PROMPTS,
        ),
        post(
            "/v1/embeddings", EmbeddingHandler(models, max_body_bytes),
            "Vectors of texts", **named, input=_PROMPTS,
        ),
        get("/v1/models", listed, "The language models that are ready"),
        get("/v1/models/{model}", one, "One language model", ("model",)),
        Route("POST", "/generate", generate.plain, _described("Text to text", "pipelines", {"text": _TEXT})),
        Route(
            "POST", "/v2/models/{model}/generate", generate.triton,
            _described("Text to text, as the generate extension has it", "pipelines", triton, ("model",)),
        ),
        Route(
            "POST", "/v2/models/{model}/generate_stream", generate.triton_stream,
            _described("The same as server-sent events, for a language model", "pipelines", triton, ("model",)),
        ),
    ]  # fmt: skip


def _described(summary: str, tag: str, fields: dict[str, Any], params: tuple[str, ...] = ()) -> dict[str, object]:
    required = [name for name in fields if name != "parameters"]
    body = {"application/json": {"type": "object", "required": required, "properties": fields}}
    return operation(summary, tag=tag, params=params, body=body, answers=ANSWERS | {"422": "The answer was refused"})


def _with_errors(described: dict[str, Any]) -> dict[str, Any]:
    """The operation with the bodies of its errors."""
    content = {"application/json": {"schema": ERROR_SCHEMA}}
    answers = described["responses"].items()
    described["responses"] = {
        status: {**answer, "content": content} if status >= "4" else answer for status, answer in answers
    }
    return described


def _described_model(model: LanguageModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.backend.loaded_at_s),
        "owned_by": "headrace",
        "max_model_len": model.backend.engine.settings.max_context,
    }


def _guarded(handler: Handler, key: str) -> Handler:
    def guarded(request: Request, params: dict[str, str]) -> object:
        check_key(request, key)
        return handler(request, params)

    return guarded
