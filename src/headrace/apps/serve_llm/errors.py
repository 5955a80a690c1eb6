"""Errors as OpenAI's clients expect them: one of our tree in, their JSON body with the same status out.

The unmodified `openai` package raises its classes by status; `param` and `code` tell a program what to do about it.
"""

from __future__ import annotations

import re

import msgspec

from headrace.errors import HeadraceError, InvalidInput, NotFound
from headrace.serve.codec.message import Response, error_headers

__all__ = ["BadRequest", "UnknownModel", "error_body", "openai_error"]

MAX_CHARS = 2000

_encoder = msgspec.json.Encoder()
_NAMED = re.compile(r"([a-z_]+(?:\[\d+\]|\.[a-z_]+)*): ")

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 504: "timeout", 503: "unavailable"}


class BadRequest(InvalidInput):
    """A field of the request is wrong; `param` names it as the client wrote it ("messages[0].role")."""

    def __init__(self, param: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.param = param or None
        self.code = code


class UnknownModel(NotFound):
    """No language model of this name is served."""

    param = "model"
    code = "model_not_found"


def error_body(error: HeadraceError) -> dict[str, dict[str, str | None]]:
    """`{"error": {"message", "type", "param", "code"}}`; the parameter is taken from "name: what is wrong with it"."""
    text, status = str(error), error.http_status
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    if param is None and isinstance(error, InvalidInput) and (named := _NAMED.match(text)):
        param = named[1]
    return {
        "error": {
            "message": text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} …",
            "type": _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
            "param": param,
            "code": code or _CODES.get(status),
        }
    }


def openai_error(error: HeadraceError, request_id: str) -> Response:
    """The answer that tells of `error`; a `Route.error_response`."""
    body = error_body(error)
    body["error"]["request_id"] = request_id
    return Response((_encoder.encode(body),), error.http_status, headers=error_headers(error))
