"""Open Inference Protocol V2: server and model metadata, readiness, config, statistics; infer is in `infer.py`."""

from __future__ import annotations

from typing import Any

import headrace
from headrace.errors import InvalidInput
from headrace.serve.codec.message import Request
from headrace.serve.codec.router import Handler, Route
from headrace.serve.model import Model
from headrace.serve.protocol import TensorSpec
from headrace.serve.repository import Repository
from headrace.serve.routes.body import json_response, operation
from headrace.serve.routes.infer import InferHandler
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

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def model(self, params: dict[str, str]) -> Model:
        name = params["model"]
        model = self._repository.get(name, params.get("version"))
        if not isinstance(model, Model):
            raise InvalidInput(f"{name!r} is a pipeline; send raw bytes to POST /v1/pipelines/{name}")
        return model

    def server(self, request: Request, params: dict[str, str]) -> None:
        extensions = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]
        request.respond(json_response({"name": "headrace", "version": headrace.__version__, "extensions": extensions}))

    def metadata(self, request: Request, params: dict[str, str]) -> None:
        model = self.model(params)
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
        model = self.model(params)
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
        models = [self.model(params)] if params else self._repository.models()
        request.respond(json_response({"model_stats": [model_stats(model) for model in models]}))


def oip_routes(repository: Repository, max_body_bytes: int) -> list[Route]:
    """The protocol's endpoints, each also under `/versions/{version}`."""
    handlers = OipRoutes(repository)
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
        ("POST", "/infer", InferHandler(handlers.model, max_body_bytes), "Run a model"),
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


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": datatype(spec.dtype), "shape": spec.shape}


def _config_tensor(spec: TensorSpec, max_batch: int) -> dict[str, Any]:
    kind = datatype(spec.dtype)
    return {
        "name": spec.name,
        "data_type": "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}",
        "dims": spec.shape[1:] if max_batch else spec.shape,
    }
