"""Liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.telemetry import Registry, render
from headrace.errors import Unavailable
from headrace.serve.codec.message import Request, Response
from headrace.serve.codec.router import Route
from headrace.serve.routes.body import json_response, operation

__all__ = ["health_routes"]


def health_routes(registry: Registry, not_ready: Callable[[], str]) -> list[Route]:
    """`not_ready()` says why no traffic should come ("" when it may)."""

    def live(request: Request, params: dict[str, str]) -> None:
        request.respond(json_response({"live": True}))

    def ready(request: Request, params: dict[str, str]) -> None:
        reason = not_ready()
        if reason:
            raise Unavailable(reason)
        request.respond(json_response({"ready": True}))

    def metrics(request: Request, params: dict[str, str]) -> None:
        body, content_type = render(registry, request.header(b"accept"))
        request.respond(Response((body,), content_type=content_type))

    alive = operation("The process answers", tag="health")
    fit = operation("Traffic may come", tag="health", answers={"503": "Draining, or no model is ready"})
    return [
        Route("GET", "/healthz", live, alive),
        Route("GET", "/livez", live, alive),
        Route("GET", "/readyz", ready, fit),
        Route("GET", "/v2/health/live", live, alive),
        Route("GET", "/v2/health/ready", ready, fit),
        Route("GET", "/metrics", metrics, operation("Prometheus metrics", tag="health")),
    ]
