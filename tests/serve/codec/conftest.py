"""The HTTP connection over real sockets, with an application that echoes, holds and streams."""

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest

from headrace.core.context import Context
from headrace.serve.codec.http import HttpProtocol
from headrace.serve.codec.message import Limits, Response, error_response
from headrace.serve.codec.reader import SCRATCH_BYTES


class Echo:
    """Answers with the body; `/hold` keeps the request, `/stream` begins an answer that the test goes on with.

    Remembers what became of each request.
    """

    def __init__(self, limits):
        self.limits = limits
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections = set()
        self.draining = False
        self.held = []
        self.streams = []
        self.statuses = []
        self.aligned = None

    def clock(self):
        return time.monotonic()

    def date(self):
        return "now"

    def finished(self, request, status):
        self.statuses.append(status)

    def fail(self, request, error):
        request.respond(error_response(error))

    def handle(self, request):
        request.ctx = Context()
        if request.path == "/hold":
            self.held.append(request)
        elif request.path == "/stream":
            self.held.append(request)
            self.streams.append(request.stream(Response(content_type="text/event-stream", headers="x: y\r\n")))
        elif request.path == "/big":
            request.respond(Response((b"x" * 10, memoryview(bytes(8_000_000)))))
        else:
            request.respond(Response((bytes(request.body),), content_type="application/octet-stream"))


@contextlib.asynccontextmanager
async def serving(**limits):
    app = Echo(Limits(**limits))
    server = await asyncio.get_running_loop().create_server(lambda: HttpProtocol(app), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield app, port
    finally:
        server.close()
        for connection in list(app.connections):
            connection.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_response(reader):
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode()
    status = int(head.split()[1])
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return status, headers, body


async def read_chunks(reader):
    """The pieces of a chunked body, up to its end. Raises `IncompleteReadError` when it was cut."""
    pieces = []
    while True:
        size = int(await asyncio.wait_for(reader.readuntil(b"\r\n"), 10), 16)
        piece = await asyncio.wait_for(reader.readexactly(size + 2), 10)
        assert piece.endswith(b"\r\n")
        if not size:
            return pieces
        pieces.append(piece[:-2])


async def until(true):
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("still not so after 5 s")


def post(body, path="/", extra=""):
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


@pytest.fixture(scope="session")
def wire():
    """`serving(**limits)`, `client(port)`, `read_response`, `read_chunks`, `until`, `post`."""
    return SimpleNamespace(
        serving=serving,
        client=client,
        read_response=read_response,
        read_chunks=read_chunks,
        until=until,
        post=post,
    )
