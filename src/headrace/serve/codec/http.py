"""HTTP/1.1 on one socket: bytes in, `Request` out to the application, `Response` back in request order.

Reading is in `reader.py`; this file owns the socket: pipelining, order, slow peers, lingering close. Measured against
ASGI servers, which spend most of a small request on a task and four coroutine switches, this is about three times
faster (`headrace bench serve`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import cast

from headrace.errors import HeadraceError, Unavailable
from headrace.serve.codec.application import Application
from headrace.serve.codec.body import DIRECT_BODY_BYTES
from headrace.serve.codec.message import REASONS, Request, RequestTimeout, Response, error_response
from headrace.serve.codec.reader import RequestReader
from headrace.serve.codec.stream import Stream

__all__ = ["HttpProtocol"]

STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n" for status, reason in REASONS.items()}
CLOSE = "connection: close\r\n"
RESET = struct.pack("ii", 1, 0)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

LINGER_S = 2.0
"""How long the input of a refused request is discarded before its connection is cut."""


class HttpProtocol(asyncio.BufferedProtocol):
    """One connection: idle -> head -> body -> (queued, busy) -> idle; or discarding input, when it is to be closed."""

    def __init__(self, app: Application) -> None:
        self.peer = ""
        self._app = app
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._reader = RequestReader(app.limits, app.clock, self._deliver, self._expect)
        self._queue: deque[Request] = deque()
        self._busy: Request | None = None
        self._stream: Stream | None = None
        self._status = 200
        self._handing_out = False
        self._fault: HeadraceError | None = None
        self._discarding = False
        self._paused = False
        self._since_s = app.clock()
        self._unsent = 0
        self._unsent_since_s = self._since_s

    # -- connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) else "local"
        self._app.connections.add(self)
        if len(self._app.connections) > self._app.limits.max_connections:
            self._reject(Unavailable(f"more than {self._app.limits.max_connections} connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._app.connections.discard(self)
        request, self._busy = self._busy, None
        stream, self._stream = self._stream, None
        self._queue.clear()
        self._discarding = True
        if stream is not None:
            stream.close()
        if request is not None:
            self._app.finished(request, 499)
            if request.ctx is not None:
                request.ctx.cancel()

    def eof_received(self) -> bool:
        """A client that has closed its side is taken for gone, and its work is cancelled; most who do so are."""
        return False

    def pause_writing(self) -> None:
        self._paused = True
        if self._stream is not None:
            self._stream.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._stream is not None:
            self._stream.resume()
        self._hand_out()

    # -- bytes in, requests out -----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = None if self._discarding else self._reader.buffer
        return self._app.scratch if buffer is None else buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._discarding:
            return
        reader = self._reader
        if reader.buffer is not None:
            reader.landed(nbytes)
        else:
            reader.feed(self._app.scratch[:nbytes])
            if reader.fault is not None:
                self._reject(reader.fault)

    def _expect(self) -> None:
        self._transport.write(CONTINUE)

    def _deliver(
        self,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        keep_alive: bool,
        body: bytes | memoryview,
        takes_chunks: bool,
    ) -> None:
        request = Request(self, method, target, headers, keep_alive, body, takes_chunks)
        if self._busy is not None or self._paused:
            self._queue.append(request)
            if len(self._queue) >= self._app.limits.max_pipelined:
                self._transport.pause_reading()
            return
        self._busy = request
        self._app.handle(request)

    def _hand_out(self) -> None:
        """Hand queued requests to the application, one after the other is answered."""
        if self._handing_out:  # called from an answer given at once, below in the stack: the loop there goes on
            return
        self._handing_out = True
        while self._queue and self._busy is None and not self._paused and not self._discarding:
            request = self._queue.popleft()
            if len(self._queue) < self._app.limits.max_pipelined:
                self._transport.resume_reading()
            self._busy = request
            self._app.handle(request)
        self._handing_out = False

    # -- responses back -------------------------------------------------------------------------------------------

    def respond(self, request: Request, response: Response) -> None:
        if request is not self._busy:
            return  # the client is gone, or the request was answered already
        if self._stream is not None:  # an error after the answer has begun: only a cut can tell of it
            self._status = response.status
            self._stream.cut()
            return
        self._busy = None
        self._app.finished(request, response.status)
        keep = request.keep_alive and not self._app.draining and self._fault is None
        self._send(_echo_id(request, response), keep, head_only=request.method == b"HEAD")
        self._answered(keep)

    def _answered(self, keep: bool) -> None:
        """Go on with the next request, or close."""
        if not keep:
            self._close_gently()
            return
        self._since_s = self._app.clock()
        if self._queue:
            self._hand_out()

    def stream(self, request: Request, head: Response) -> Stream:
        if request is not self._busy or self._stream is not None:
            stream = Stream(self._transport.write, lambda _: None, chunked=False)
            stream.close()
            return stream
        keep = request.keep_alive and request.takes_chunks and not self._app.draining and self._fault is None
        head = _echo_id(request, head)
        framing = "transfer-encoding: chunked\r\n" if request.takes_chunks else ""
        self._transport.write(self._head(head, framing, keep))
        self._status = head.status
        chunked = request.takes_chunks and request.method != b"HEAD"

        def finish(complete: bool) -> None:
            self._stream, self._busy = None, None
            self._app.finished(request, self._status)
            if complete:
                self._answered(keep and not self._app.draining and self._fault is None)
            elif chunked:  # what was sent may still arrive; the missing last chunk says that it is not all
                self._transport.close()
            else:  # only a reset tells a client that reads to the end that this is not it
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                self._transport.abort()

        stream = self._stream = Stream(self._transport.write, finish, chunked=chunked)
        if self._paused:
            stream.pause()
        if request.method == b"HEAD":
            stream.end()
        return stream

    def fail(self, request: Request, error: Exception) -> None:
        self._app.fail(request, error)

    def _send(self, response: Response, keep: bool, head_only: bool = False) -> None:
        if self._transport.is_closing():
            return
        body = response.body
        length = len(body[0]) if len(body) == 1 else sum(memoryview(part).nbytes for part in body)
        head = self._head(response, f"content-length: {length}\r\n", keep, typed=length > 0)
        if head_only:
            self._transport.write(head)
        elif length < DIRECT_BODY_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.write(head)
            for part in body:
                self._transport.write(part)

    def _head(self, response: Response, framing: str, keep: bool, *, typed: bool = True) -> bytes:
        kind = f"content-type: {response.content_type}\r\n" if typed else ""
        return (
            f"{STATUS_LINES[response.status]}date: {self._app.date()}\r\n{kind}{framing}"
            f"{response.headers}{'' if keep else CLOSE}\r\n"
        ).encode("latin-1")

    def _reject(self, error: HeadraceError) -> None:
        """Answer a request that never became one, then close; a request being answered is finished first."""
        self._fault = error
        self._discarding = True
        self._queue.clear()
        if self._busy is None:
            self._send(error_response(error), keep=False)
            self._close_gently()

    def _close_gently(self) -> None:
        """Close once all is sent; after a fault keep discarding input for a moment, since closing on unread bytes
        would reset the connection before the client has read the answer."""
        self._since_s = self._app.clock()
        if self._fault is None:
            self._transport.close()
        elif self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    # -- time --------------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Cut a peer that is too slow; called about once a second with `time.monotonic()`."""
        limits, reader = self._app.limits, self._reader
        if self._stuck(now_s):
            self._transport.abort()
        elif self._discarding:
            if self._busy is None and now_s - self._since_s > LINGER_S:
                self._transport.abort()
        elif reader.in_head and now_s - reader.since_s > limits.header_timeout_s:
            self._reject(RequestTimeout(f"headers not complete within {limits.header_timeout_s:g} s"))
        elif reader.in_body:
            silent_s, took_s = now_s - reader.progress_s, now_s - reader.since_s
            slow = took_s > limits.body_timeout_s and reader.received < took_s * limits.min_body_rate
            if silent_s > limits.body_timeout_s or slow:
                self._reject(RequestTimeout(f"body too slow: {reader.received} bytes in {took_s:.1f} s"))
        elif self._busy is None and (self._app.draining or now_s - self._since_s > limits.keep_alive_s):
            self._transport.close()

    def _stuck(self, now_s: float) -> bool:
        """Whether the client has taken nothing of what waits to be sent for `write_timeout_s`."""
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since_s = unsent, now_s
            return False
        return now_s - self._unsent_since_s > self._app.limits.write_timeout_s

    def idle(self) -> bool:
        return self._busy is None and not self._reader.in_body and not self._queue

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def _echo_id(request: Request, response: Response) -> Response:
    if b"x-request-id" in request.headers:
        response.headers += f"x-request-id: {request.header(b'x-request-id')[:128]}\r\n"
    return response
