"""HTTP messages as the server sees them: `Request`, `Response`, the `Limits` one client is held to, error bodies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from headrace.core.context import Context
from headrace.core.telemetry import Span
from headrace.errors import HeadraceError, InvalidInput
from headrace.serve.codec.stream import Stream

__all__ = [
    "REASONS",
    "ErrorResponse",
    "HeadersTooLarge",
    "Limits",
    "Request",
    "RequestTimeout",
    "Response",
    "error_headers",
    "error_response",
]

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 409: "Conflict", 413: "Content Too Large", 415: "Unsupported Media Type",
    422: "Unprocessable Content", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    499: "Client Closed Request", 500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one client may use. Sizes in bytes, times in seconds."""

    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = 64 * 1024 * 1024
    max_connections: int = 4096
    max_concurrency: int = 2048
    max_pipelined: int = 16
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    """Longest silence while a body is being sent."""
    min_body_rate: float = 1024.0
    """Bytes a second a body must average after `body_timeout_s`."""
    write_timeout_s: float = 30.0
    keep_alive_s: float = 75.0


class HeadersTooLarge(InvalidInput):
    http_status = 431


class RequestTimeout(InvalidInput):
    http_status, grpc_status = 408, "DEADLINE_EXCEEDED"


class Response(msgspec.Struct):
    """Status, body buffers (sent without joining) and extra header lines (each `name: value\\r\\n`)."""

    body: tuple[bytes | memoryview, ...] = ()
    status: int = 200
    content_type: str = "application/json"
    headers: str = ""


class Connection(Protocol):
    """The request's way back."""

    peer: str

    def respond(self, request: Request, response: Response, /) -> None: ...
    def stream(self, request: Request, head: Response, /) -> Stream: ...
    def fail(self, request: Request, error: Exception, /) -> None: ...


class Request:
    """One complete request.

    Attributes:
        method, target: As sent. `path` and `query` are the two parts of the target, not percent-decoded.
        headers: Lower-case names to values; a repeated header's values are joined by ", ".
        body: The whole body; a large one is a view of its own buffer.
        ctx: Set by the application; cancelled when the client goes away.
        takes_chunks: Whether the client understands a chunked answer.
        route: Path pattern of the route that answers, "" when there is none.
        error_response: How its errors are told.
        started_s: `time.perf_counter()` when the request was complete.
    """

    __slots__ = (
        "_connection",
        "body",
        "ctx",
        "error_response",
        "headers",
        "keep_alive",
        "method",
        "route",
        "span",
        "started_s",
        "takes_chunks",
        "target",
    )

    def __init__(
        self,
        connection: Connection,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        keep_alive: bool,
        body: bytes | memoryview,
        takes_chunks: bool = True,
    ) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.ctx: Context | None = None
        self.keep_alive = keep_alive
        self.takes_chunks = takes_chunks
        self.route = ""
        self.error_response: ErrorResponse = error_response
        self.span: Span | None = None
        self.started_s = time.perf_counter()

    @property
    def path(self) -> str:
        path = self.target.partition(b"?")[0]
        if path[:1] != b"/" and b"://" in path:  # the absolute form, which proxies send
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        return path.decode("latin-1")

    @property
    def query(self) -> str:
        return self.target.partition(b"?")[2].decode("latin-1")

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def peer(self) -> str:
        return self._connection.peer

    def respond(self, response: Response) -> None:
        """Send the answer; ignored when the client is gone. Call once, on the event loop."""
        self._connection.respond(self, response)

    def stream(self, head: Response) -> Stream:
        """Begin an answer that follows piece by piece; of `head` all but the body is sent at once. Call instead of
        `respond`. The stream is born closed when nobody waits for it (the client is gone) or the method is HEAD."""
        return self._connection.stream(self, head)

    def fail(self, error: Exception) -> None:
        """Answer with an error, whose cause is logged when it is the server's own."""
        self._connection.fail(self, error)


ErrorResponse: TypeAlias = Callable[[HeadraceError, str], Response]
"""Error and request id to the answer that tells of it."""

MAX_ERROR_CHARS = 2000

_error_encoder = msgspec.json.Encoder()


def error_response(error: HeadraceError, request_id: str = "") -> Response:
    """The JSON body every error has: what went wrong, its class, and the request it belongs to."""
    text = str(error)
    body = {
        "error": text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]} …",
        "type": type(error).__name__,
    }
    if request_id:
        body["request_id"] = request_id
    return Response((_error_encoder.encode(body),), error.http_status, headers=error_headers(error))


def error_headers(error: HeadraceError) -> str:
    """The header lines that go with an error: when to come again, how to say who one is."""
    retry = getattr(error, "retry_after_s", None)
    headers = f"retry-after: {max(1, round(retry))}\r\n" if retry is not None else ""
    return headers + ("www-authenticate: Bearer\r\n" if error.http_status == 401 else "")
