"""Server-sent events of one answer: pieces of bytes in, the streamed response out.

The head is sent with the first piece, so that whatever fails before it still has its own status; what fails later is
told by an event, after which the stream ends.
"""

from __future__ import annotations

import logging

from headrace.apps.serve_llm.errors import error_body
from headrace.apps.serve_llm.wire import event
from headrace.core.logs import fields
from headrace.errors import HeadraceError
from headrace.serve.codec.message import Request, Response
from headrace.serve.codec.stream import Stream

__all__ = ["EventStream"]

_log = logging.getLogger(__name__)

HEADERS = "cache-control: no-cache\r\nx-accel-buffering: no\r\n"


class EventStream:
    """Sends events; `async with` around the work that makes them."""

    def __init__(self, request: Request, *, last: bytes = b"") -> None:
        self._request = request
        self._last = last
        self._stream: Stream | None = None

    async def send(self, piece: bytes) -> None:
        """Send one or several events; waits while the client lags."""
        stream = self._stream
        if stream is None:
            stream = self._stream = self._request.stream(
                Response(content_type="text/event-stream; charset=utf-8", headers=HEADERS)
            )
        if not stream.write(piece):
            await stream.ready()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        stream = self._stream
        if error is None:
            await self.send(self._last)
            assert self._stream is not None
            self._stream.end()
            return False
        if stream is None or not isinstance(error, HeadraceError):
            return False  # the server answers, or cuts
        if error.http_status >= 500:
            _log.warning("%s", error, exc_info=error.__cause__, extra=fields(self._request.ctx))
        stream.write(event(error_body(error)))
        stream.end()
        return True
