"""Bytes of one connection in, complete requests out; the parsing is llhttp's, through httptools.

A large body bypasses the parser: it is received straight into its own buffer (no copy in user space), laid out so that
the first binary tensor starts on a 64-byte boundary. Whatever a client sends, memory is bounded by the limits: heads,
trailers and chunk framing are counted as they come. The first fault ends the reading for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import httptools

from headrace.errors import HeadraceError, InvalidInput, PayloadTooLarge
from headrace.serve.codec.body import DIRECT_BODY_BYTES, Body
from headrace.serve.codec.message import HeadersTooLarge, Limits

__all__ = ["SCRATCH_BYTES", "Deliver", "RequestReader"]

SCRATCH_BYTES = 256 * 1024
"""Size of the receive buffer that all connections of a server share: the most one `feed` gets."""

FRAMING_FACTOR = 8
"""Chunk framing may take this many times the bytes of the body; sending byte by byte takes six."""

Deliver: TypeAlias = Callable[[bytes, bytes, dict[bytes, bytes], bool, bytes | memoryview, bool], None]
"""Takes method, target, headers (lower-case names), keep-alive, body of each complete request, and whether the client
understands a chunked answer (HTTP/1.1)."""


class RequestReader:
    """The reading half of a connection.

    Attributes:
        fault: Why reading ended, or None. The owner answers it and feeds no more.
        in_head, in_body: Where in a request the last byte was.
        since_s, progress_s: `clock()` when that part began, and when the body last grew.
        received: Bytes of the present body.
    """

    def __init__(
        self, limits: Limits, clock: Callable[[], float], deliver: Deliver, expect: Callable[[], None]
    ) -> None:
        self.fault: HeadraceError | None = None
        self.in_head = False
        self.in_body = False
        self.since_s = self.progress_s = clock()
        self._limits = limits
        self._clock = clock
        self._deliver = deliver
        self._expect = expect
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._counted = 0  # bytes of head and trailers, added up only where a limit could be near
        self._counting = False
        self._fed = 0  # bytes given to the parser since the request began
        self._body: Body | None = None
        self._keep_alive = True
        self._takes_chunks = True
        self._upgrade = False
        self._method = b""

    @property
    def received(self) -> int:
        return self._body.received if self._body is not None else 0

    @property
    def buffer(self) -> memoryview | None:
        """Where the rest of a large body is to be received, or None: receive anywhere, then `feed`."""
        body = self._body
        return None if body is None or body.buffer is None else body.buffer[body.received :]

    def landed(self, nbytes: int) -> None:
        """`nbytes` were received into `buffer`."""
        body = self._body
        assert body is not None
        body.received += nbytes
        self.progress_s = self._clock()
        if body.complete:
            self._parser = httptools.HttpRequestParser(self)  # the old one still waits for the bytes it did not see
            self._finish()

    def feed(self, data: memoryview) -> None:
        """Parse `data`; may deliver several requests."""
        while len(data) and self.fault is None:
            # What came in one short read is within the limit; only longer heads are added up header by header.
            self._counting = self._fed + len(data) > self._limits.max_header_bytes
            self._fed += len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._ignore_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                self.fault = self.fault or InvalidInput(f"not a valid HTTP/1.1 request: {error}")
        allowed = self._limits.max_header_bytes + SCRATCH_BYTES
        if self.in_body:
            allowed += FRAMING_FACTOR * self.received
        if (self.in_head or self.in_body) and self._fed > allowed and self.buffer is None and self.fault is None:
            self.fault = self._too_large()

    # -- parser callbacks (an exception here would be swallowed into a parser error, so faults are noted instead) ----

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = {}
        self._counted = 0
        self._fed = 0
        self.in_head = True
        self.since_s = self._clock()

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._counting:
            self._count(len(name) + len(value))
        if not self.in_head:  # a trailer, which must not pass for a header (RFC 9110, 6.5.1)
            return
        name = name.lower()
        headers = self._headers
        headers[name] = headers[name] + b", " + value if name in headers else value

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        self.in_head, self.in_body = False, True
        self._method = parser.get_method()
        self._keep_alive = parser.should_keep_alive()
        # HTTP/1.0 keeps a connection only when asked to, so the version need not be read in the usual case.
        plain = self._keep_alive and b"connection" not in headers
        self._takes_chunks = plain or parser.get_http_version() == "1.1"
        self._upgrade = parser.should_upgrade()
        self.since_s = self.progress_s = self._clock()
        if self.fault is not None:
            return
        length = int(headers.get(b"content-length", b"0"))
        if length > self._limits.max_body_bytes:
            self.fault = PayloadTooLarge(f"body of {length} bytes; at most {self._limits.max_body_bytes} are accepted")
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self.fault = InvalidInput("transfer-encoding: only chunked is accepted")
        elif b"host" not in headers and self._takes_chunks:
            self.fault = InvalidInput("an HTTP/1.1 request needs a Host header")
        else:
            lead = headers.get(b"inference-header-content-length", b"") if length >= DIRECT_BODY_BYTES else b""
            self._body = Body(length, int(lead) if lead.isdigit() and len(lead) < 12 else 0)
            if b"expect" in headers and headers[b"expect"].lower() == b"100-continue":
                self._expect()

    def on_body(self, chunk: bytes) -> None:
        if self.fault is not None or self._body is None:
            return
        if self._body.received + len(chunk) > self._limits.max_body_bytes:
            self.fault = PayloadTooLarge(f"body longer than {self._limits.max_body_bytes} bytes")
        else:
            self._body.append(chunk)
            self.progress_s = self._clock()

    def on_message_complete(self) -> None:
        if not self._upgrade and self.fault is None:
            self._finish()

    # ----------------------------------------------------------------------------------------------------------

    def _ignore_upgrade(self, rest: memoryview) -> memoryview:
        """Read a request that offers another protocol as plain HTTP/1.1: its body begins right after the head.

        Returns what of `rest` lies behind the body.
        """
        self._parser = httptools.HttpRequestParser(self)
        self._upgrade = False
        if self.fault is not None or self._body is None:
            return rest[:0]
        if b"transfer-encoding" in self._headers:
            self.fault = InvalidInput("a chunked request cannot ask for a protocol upgrade")
            return rest[:0]
        length = int(self._headers.get(b"content-length", b"0"))
        if self._body.buffer is None:
            self._body.reserve(length)
        self._body.append(bytes(rest[:length]))
        if not self._body.complete:
            return rest[:0]
        self._finish()
        return rest[length:]

    def _finish(self) -> None:
        body, self._body = self._body, None
        assert body is not None
        self.in_body = False
        self._deliver(self._method, self._target, self._headers, self._keep_alive, body.take(), self._takes_chunks)

    def _count(self, nbytes: int) -> None:
        self._counted += nbytes
        if self._counted > self._limits.max_header_bytes:
            self.fault = self.fault or self._too_large()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"request line, headers or framing exceed {self._limits.max_header_bytes} bytes")
