"""Model control: list what the repository holds, load and unload. Guarded by the server's control token."""

from __future__ import annotations

import hmac
import re
from typing import Any

import msgspec

from headrace.errors import PermissionDenied, Unauthenticated
from headrace.serve.codec.message import Request
from headrace.serve.codec.router import Route
from headrace.serve.repository import Repository
from headrace.serve.routes.body import json_body, json_response, operation

__all__ = ["ControlGuard", "control_routes"]

MAX_BODY_BYTES = 64 * 1024
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class IndexRequest(msgspec.Struct):
    ready: bool = False


class LoadRequest(msgspec.Struct):
    parameters: dict[str, Any] = {}


class ControlGuard:
    """Who may change what is served.

    With a token, whoever presents it. Without one, only when the server listens on a loopback address, and then never a
    web page: a browser's request carries an `Origin`, and a rebound DNS name shows in `Host`.
    """

    def __init__(self, token: str, loopback: bool) -> None:
        self._token = token.encode()
        self._loopback = loopback

    def check(self, request: Request) -> None:
        """Raise `Unauthenticated` (401) or `PermissionDenied` (403) unless the request may control the server."""
        if self._token:
            scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                raise Unauthenticated("model control needs the server's token: Authorization: Bearer TOKEN")
            return
        if not self._loopback:
            raise PermissionDenied("model control is off: the server is not bound to loopback and has no --token")
        host = re.fullmatch(r"(\[::1\]|[^:@/]+)(?::\d*)?", request.header(b"host").strip().lower())
        if b"origin" in request.headers or host is None or host[1] not in LOCAL_HOSTS:
            raise PermissionDenied("model control without a token is for local, non-browser clients only")


def control_routes(repository: Repository) -> list[Route]:
    def index(request: Request, params: dict[str, str]) -> None:
        asked = json_body(request, IndexRequest, MAX_BODY_BYTES)
        entries = repository.index()
        request.respond(json_response([entry for entry in entries if not asked.ready or entry["state"] == "READY"]))

    async def load(request: Request, params: dict[str, str]) -> None:
        json_body(request, LoadRequest, MAX_BODY_BYTES)
        await repository.load(params["model"])
        request.respond(json_response({}))

    async def unload(request: Request, params: dict[str, str]) -> None:
        asked = json_body(request, LoadRequest, MAX_BODY_BYTES)
        dependents = asked.parameters.get("unload_dependents") is True
        await repository.unload(params["model"], unload_dependents=dependents)
        request.respond(json_response({}))

    body = {"application/json": {"type": "object"}}
    refused = {"400": "Wrong body", "401": "Token missing or wrong", "403": "Control is off for this client"}
    changing = {**refused, "404": "No such model", "409": "A pipeline needs it", "500": "It could not be loaded"}
    return [
        Route(
            "POST", "/v2/repository/index", index,
            operation("What the repository holds, with states and reasons", tag="control", body=body, answers=refused),
            control=True,
        ),
        Route(
            "POST", "/v2/repository/models/{model}/load", load,
            operation("Load or reload", tag="control", params=("model",), body=body, answers=changing), control=True,
        ),
        Route(
            "POST", "/v2/repository/models/{model}/unload", unload,
            operation("Unload", tag="control", params=("model",), body=body, answers=changing), control=True,
        ),
    ]  # fmt: skip
