"""Open Inference Protocol V2: server and model metadata, readiness, config, statistics, and infer, the hot path."""

from __future__ import annotations

from typing import Any

import headrace
from headrace.core.context import Context
from headrace.errors import HeadraceError, InvalidInput
from headrace.serve.codec.message import Request, Response
from headrace.serve.codec.oip import InferRequest, decode, encode
from headrace.serve.codec.router import Handler, Route
from headrace.serve.model import Model
from headrace.serve.protocol import Tensors, TensorSpec
from headrace.serve.repository import Repository
from headrace.serve.routes.body import body_of, json_response, operation, timeout_of
from headrace.serve.routes.stats import model_stats
from headrace.serve.tensors import DTYPES, datatype

__all__ = ["oip_routes"]

INFER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object"},
        "inputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype", "data"],
                "properties": {
                    "name": {"type": "string"},
                    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    "datatype": {"type": "string", "enum": list(DTYPES)},
                    "data": {"type": "array"},
                    "parameters": {"type": "object"},
                },
            },
        },
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
            },
        },
    },
}


class OipRoutes:
    """Handlers of the protocol over one repository."""

    def __init__(self, repository: Repository, max_body_bytes: int) -> None:
        self._repository = repository
        self._max_body_bytes = max_body_bytes

    def _model(self, params: dict[str, str]) -> Model:
        name = params["model"]
        model = self._repository.get(name, params.get("version"))
        if not isinstance(model, Model):
            raise InvalidInput(f"{name!r} is a pipeline; send raw bytes to POST /v1/pipelines/{name}")
        return model

    def infer(self, request: Request, params: dict[str, str]) -> None:
        model = self._model(params)
        body = request.body if b"content-encoding" not in request.headers else body_of(request, self._max_body_bytes)
        asked, tensors = decode(body, request.header(b"inference-header-content-length"))
        ctx = request.ctx
        assert ctx is not None
        _refine(ctx, asked, timeout_of(request, model.config.timeout_s))

        def done(outputs: Tensors | None, error: HeadraceError | None) -> None:
            if error is not None:
                request.fail(error)
                return
            assert outputs is not None
            try:
                parts, headers = encode(asked, model.name, model.version, outputs)
            except Exception as refused:  # nobody above would answer
                request.fail(refused)
                return
            content_type = "application/octet-stream" if headers else "application/json"
            request.respond(Response(parts, content_type=content_type, headers=headers))

        model.submit(tensors, ctx, done)

    def server(self, request: Request, params: dict[str, str]) -> None:
        extensions = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]
        request.respond(json_response({"name": "headrace", "version": headrace.__version__, "extensions": extensions}))

    def metadata(self, request: Request, params: dict[str, str]) -> None:
        model = self._model(params)
        request.respond(
            json_response(
                {
                    "name": model.name,
                    "versions": [model.version],
                    "platform": model.platform,
                    "inputs": [_tensor(spec) for spec in model.inputs],
                    "outputs": [_tensor(spec) for spec in model.outputs],
                    "parameters": {key: value for key, value in model.metadata.items() if len(value) <= 256},
                }
            )
        )

    def ready(self, request: Request, params: dict[str, str]) -> None:
        found = self._repository.get(params["model"], params.get("version"))
        request.respond(json_response({"name": found.name, "ready": True}))

    def config(self, request: Request, params: dict[str, str]) -> None:
        model = self._model(params)
        batching = model.config.batching
        max_batch = batching.max_batch if model.joinable and batching.enabled else 0
        request.respond(
            json_response(
                {
                    "name": model.name,
                    "platform": model.platform,
                    "backend": model.platform,
                    "max_batch_size": max_batch,
                    "input": [_config_tensor(spec, max_batch) for spec in model.inputs],
                    "output": [_config_tensor(spec, max_batch) for spec in model.outputs],
                    "instance_group": [{"kind": "KIND_CPU", "count": model.config.runtime.instances}],
                    "headrace": model.config,
                }
            )
        )

    def stats(self, request: Request, params: dict[str, str]) -> None:
        models = [self._model(params)] if params else self._repository.models()
        request.respond(json_response({"model_stats": [model_stats(model) for model in models]}))


def oip_routes(repository: Repository, max_body_bytes: int) -> list[Route]:
    """The protocol's endpoints, each also under `/versions/{version}`."""
    handlers = OipRoutes(repository, max_body_bytes)
    absent = {"404": "No such model or version", "503": "It failed to load, or is loading"}
    infer_answers = {
        **absent, "400": "Wrong input: says what, where and what was expected", "413": "Body too large",
        "415": "Content-Encoding not supported", "422": "The answer failed validation", "429": "Queue full",
        "499": "Client gone", "503": "Draining or unloading", "504": "Deadline exceeded", "500": "The model failed",
    }  # fmt: skip
    body = {"application/json": INFER_SCHEMA, "application/octet-stream": {"type": "string", "format": "binary"}}
    routes = [
        Route("GET", "/v2", handlers.server, operation("Server name, version, extensions", tag="oip")),
        Route("GET", "/v2/models/stats", handlers.stats, operation("Statistics of all models", tag="oip")),
    ]
    table: list[tuple[str, str, Handler, str]] = [
        ("GET", "", handlers.metadata, "Names, datatypes and shapes of a model's tensors"),
        ("GET", "/ready", handlers.ready, "Whether a model can infer"),
        ("GET", "/config", handlers.config, "How a model is served"),
        ("GET", "/stats", handlers.stats, "Counts and times of a model"),
        ("POST", "/infer", handlers.infer, "Run a model"),
    ]
    for prefix, names in (
        ("/v2/models/{model}", ("model",)),
        ("/v2/models/{model}/versions/{version}", ("model", "version")),
    ):
        for method, suffix, handler, summary in table:
            answers = infer_answers if suffix == "/infer" else {**absent, "400": "The name is a pipeline's"}
            described = operation(
                summary, tag="oip", params=names, body=body if suffix == "/infer" else None, answers=answers
            )
            routes.append(Route(method, prefix + suffix, handler, described))
    return routes


def _refine(ctx: Context, asked: InferRequest, timeout_s: float) -> None:
    """Take the protocol's id, `timeout` (microseconds) and `priority` (1 is served first, 0, the default, last)."""
    if asked.id:
        ctx.request_id = asked.id
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


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": datatype(spec.dtype), "shape": spec.shape}


def _config_tensor(spec: TensorSpec, max_batch: int) -> dict[str, Any]:
    kind = datatype(spec.dtype)
    return {
        "name": spec.name,
        "data_type": "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}",
        "dims": spec.shape[1:] if max_batch else spec.shape,
    }
