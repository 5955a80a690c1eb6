"""`/openapi.json`, generated from the routes themselves, and a page that shows it to a person."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import headrace
from headrace.serve.codec.message import Request, Response
from headrace.serve.codec.router import Route
from headrace.serve.routes.body import json_response, operation

__all__ = ["docs_routes", "openapi"]

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "type"],
    "properties": {"error": {"type": "string"}, "type": {"type": "string"}, "request_id": {"type": "string"}},
}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } td { border-top: 1px solid #ddd; padding: .4rem .6rem .4rem 0 }
code { font: 13px ui-monospace, monospace } .m { font-weight: 600; width: 4rem } h2 { margin-top: 2rem }
"""


Names = Callable[[], dict[str, list[str]]]
"""Path parameter -> the values it can take now; they appear in the document."""


def openapi(routes: list[Route], names: dict[str, list[str]]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of `routes`; a 4xx or 5xx answer that states no body has the common one."""
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        described = dict(route.operation)
        responses: dict[str, Any] = dict(described["responses"])  # type: ignore[call-overload]
        for status in [status for status in responses if status >= "4"]:
            content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
            responses[status] = {"content": content, **responses[status]}
        described["responses"] = responses
        described["parameters"] = [
            {**parameter, "schema": {"type": "string", "enum": names[parameter["name"]]}}
            if names.get(parameter["name"])
            else parameter
            for parameter in described["parameters"]  # type: ignore[attr-defined]
        ]
        if route.control:
            described["security"] = [{}, {"token": []}]
        paths.setdefault(route.path, {})[route.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": headrace.__version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR_SCHEMA},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def docs_routes(routes: list[Route], names: Names) -> list[Route]:
    """Endpoints that describe `routes` and themselves."""

    def document(request: Request, params: dict[str, str]) -> None:
        request.respond(json_response(openapi([*routes, *own], names())))

    def page(request: Request, params: dict[str, str]) -> None:
        html = _page([*routes, *own]).encode()
        request.respond(Response((html,), content_type="text/html; charset=utf-8"))

    own = [
        Route("GET", "/openapi.json", document, operation("This API as an OpenAPI document", tag="docs")),
        Route("GET", "/docs", page, operation("This API as a page", tag="docs")),
        Route("GET", "/", page, operation("This API as a page", tag="docs")),
    ]
    return own


def _page(routes: list[Route]) -> str:
    groups: dict[str, list[str]] = {}
    for route in routes:
        tag = route.operation["tags"][0]  # type: ignore[index]
        row = (
            f"<tr><td class=m>{escape(route.method)}</td><td><code>{escape(route.path)}</code></td>"
            f"<td>{escape(str(route.operation['summary']))}</td></tr>"
        )
        groups.setdefault(tag, []).append(row)
    tables = "".join(f"<h2>{escape(tag)}</h2><table>{''.join(rows)}</table>" for tag, rows in groups.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Headrace</title><style>{STYLE}</style>"
        f"<h1>Headrace {escape(headrace.__version__)}</h1><p>The same as <a href=/openapi.json>OpenAPI</a>. "
        f"Errors are JSON: <code>error</code>, <code>type</code>, <code>request_id</code>.</p>{tables}</html>"
    )
