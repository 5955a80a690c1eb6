"""What handlers share: the decoded body of a request, JSON in and out, time limits, OpenAPI fragments."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec

from headrace.errors import InvalidInput, PayloadTooLarge, UnsupportedMedia
from headrace.serve.codec.message import Request, Response

__all__ = ["body_of", "json_body", "json_response", "operation", "query_of", "timeout_of"]

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
TIMEOUT_HEADER = b"x-request-timeout-s"


def body_of(request: Request, max_bytes: int) -> bytes | memoryview:
    """The body with its `Content-Encoding` undone (gzip, deflate), never more than `max_bytes` of it.

    Raises `UnsupportedMedia` for other encodings, `InvalidInput` for corrupt data, `PayloadTooLarge` for a bomb.
    """
    coding = request.header(b"content-encoding").strip().lower()
    if coding in ("", "identity"):
        return request.body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedMedia(f"content-encoding {coding!r} is not supported; expected gzip, deflate or identity")
    inflater = zlib.decompressobj(wbits=47)  # gzip or zlib, by its header
    try:
        data = inflater.decompress(request.body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidInput(f"body is not valid {coding}: {error}") from None
    if len(data) > max_bytes:
        raise PayloadTooLarge(f"body inflates to more than {max_bytes} bytes")
    if not inflater.eof:
        raise InvalidInput(f"body is truncated {coding} data")
    return data


def json_body(request: Request, kind: type[T], max_bytes: int) -> T:
    """Parse the body as `kind`; an empty body reads as `{}`. Raises `InvalidInput` naming the field."""
    try:
        return msgspec.json.decode(body_of(request, max_bytes) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"body: {error}") from None
    except RecursionError:
        raise InvalidInput("body: nested too deeply") from None


def json_response(value: Any) -> Response:
    return Response((_encoder.encode(value),))


def timeout_of(request: Request, default_s: float) -> float:
    """Seconds the client is willing to wait: `X-Request-Timeout-S`, at most the configured `default_s`."""
    if TIMEOUT_HEADER not in request.headers:
        return default_s
    raw = request.header(TIMEOUT_HEADER)
    try:
        timeout_s = float(raw)
    except ValueError:
        timeout_s = -1.0
    if not 0 < timeout_s < float("inf"):
        raise InvalidInput(f"x-request-timeout-s: expected a positive number of seconds, got {raw!r}")
    return min(timeout_s, default_s)


def query_of(request: Request) -> dict[str, str]:
    """The query string's fields; the last wins when one is repeated."""
    from urllib.parse import parse_qsl

    return dict(parse_qsl(request.query, keep_blank_values=True))


def operation(
    summary: str,
    *,
    tag: str,
    params: tuple[str, ...] = (),
    body: dict[str, Any] | None = None,
    answers: dict[str, str] | None = None,
) -> dict[str, object]:
    """An OpenAPI operation object. `body` maps media types to schemas; `answers` adds statuses to the common ones."""
    described: dict[str, object] = {
        "summary": summary,
        "tags": [tag],
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in params],
        "responses": {status: {"description": text} for status, text in {"200": "Answer", **(answers or {})}.items()},
    }
    if body is not None:
        content = {media: {"schema": schema} for media, schema in body.items()}
        described["requestBody"] = {"required": True, "content": content}
    return described
