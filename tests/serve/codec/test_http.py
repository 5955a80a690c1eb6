"""The HTTP connection over real sockets, with an application that echoes: framing, limits, order, slow peers."""

import asyncio
import contextlib
import time

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.serve.codec.http import HttpProtocol
from headrace.serve.codec.message import Limits, Response
from headrace.serve.codec.reader import SCRATCH_BYTES


class Echo:
    """Answers with the body; `/hold` waits for `release`; remembers what became of each request."""

    def __init__(self, limits):
        self.limits = limits
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections = set()
        self.draining = False
        self.held = []
        self.statuses = []
        self.aligned = None

    def clock(self):
        return time.monotonic()

    def date(self):
        return "now"

    def finished(self, request, status):
        self.statuses.append(status)

    def handle(self, request):
        request.ctx = Context()
        if request.path == "/hold":
            self.held.append(request)
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


async def until(true):
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("still not so after 5 s")


def post(body, path="/", extra=""):
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=4),
    st.lists(st.integers(1, 150_000), min_size=1, max_size=6),
)
def test_any_fragmentation_of_any_pipeline_gives_the_bodies_back_in_order(sizes, cuts):
    async def scenario():
        bodies = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
        stream = b"".join(post(body) for body in bodies)
        async with serving() as (_, port), client(port) as (reader, writer):
            offset = 0
            for cut in [*cuts, len(stream)]:
                writer.write(stream[offset : offset + cut])
                offset += cut
                await asyncio.sleep(0)
            for body in bodies:
                status, _, answer = await read_response(reader)
                assert (status, answer == body) == (200, True)

    uvloop.run(scenario())


async def test_chunked_bodies_are_joined():
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await read_response(reader))[2] == b"abcde"


async def test_a_binary_tensor_starts_on_a_cache_line():
    seen = []
    async with serving() as (app, port), client(port) as (reader, writer):
        handle = app.handle

        def spy(request):
            seen.append(request.body)
            handle(request)

        app.handle = spy
        writer.write(post(b"j" * 77 + b"t" * 100_000, extra="inference-header-content-length: 77\r\n"))
        await read_response(reader)
    import numpy as np

    assert np.frombuffer(seen[0], np.uint8)[77:].ctypes.data % 64 == 0


async def test_expect_100_is_answered_before_the_body():
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await read_response(reader))[2] == b"abc"


async def test_an_offered_upgrade_is_ignored_and_the_body_kept():
    async with serving() as (_, port), client(port) as (reader, writer):
        extra = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
        writer.write(post(b"hello", extra=extra))
        assert (await read_response(reader))[2] == b"hello"
        for size in (5, 100_000):
            writer.write(post(b"z" * size, extra=extra)[:-1])
            await asyncio.sleep(0.01)
            writer.write(b"z")
            assert len((await read_response(reader))[2]) == size


async def test_head_gets_the_headers_of_get_and_no_body():
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(b"HEAD /big HTTP/1.1\r\nhost: x\r\n\r\n" + post(b"after"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert b"content-length: 8000010" in head
        assert (await read_response(reader))[2] == b"after"


async def test_large_answers_arrive_whole():
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        assert len((await read_response(reader))[2]) == 8_000_010


async def test_http_1_0_and_connection_close_end_the_connection():
    async with serving() as (_, port):
        for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"):
            async with client(port) as (reader, writer):
                writer.write(head)
                _, headers, _ = await read_response(reader)
                assert headers["connection"] == "close"
                assert await asyncio.wait_for(reader.read(), 10) == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999999999999999\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % i for i in range(9000)) + b"\r\n", 431),
    ],
)
async def test_malformed_requests_are_refused_and_the_connection_closed(request_bytes, status):
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(request_bytes)
        got, _, body = await read_response(reader)
        assert got == status
        assert b'"error"' in body
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_the_answer_to_an_oversized_upload_survives_the_upload():
    async with serving(max_body_bytes=1000) as (_, port), client(port) as (reader, writer):
        writer.write(post(b"x" * 3_000_000))
        status, _, body = await read_response(reader)
        assert status == 413
        assert b"3000000 bytes; at most 1000" in body


async def test_a_chunked_body_is_cut_at_the_limit():
    async with serving(max_body_bytes=1000) as (_, port), client(port) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"y" * 1024 + b"\r\n"
        )
        assert (await read_response(reader))[0] == 413


async def test_an_endless_header_is_cut():
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                writer.write(b"a" * 65536)
                await writer.drain()
        assert (await read_response(reader))[0] == 431


@pytest.mark.parametrize("sent", [b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc"])
async def test_slow_requests_are_cut_with_408(sent):
    async with serving(header_timeout_s=0.05, body_timeout_s=0.05) as (app, port), client(port) as (reader, writer):
        writer.write(sent)
        await asyncio.sleep(0.1)
        for connection in list(app.connections):
            connection.sweep(time.monotonic())
        assert (await read_response(reader))[0] == 408


async def test_idle_connections_are_closed():
    async with serving(keep_alive_s=0.01) as (app, port), client(port) as (reader, writer):
        writer.write(post(b"x"))
        await read_response(reader)
        await asyncio.sleep(0.02)
        for connection in list(app.connections):
            connection.sweep(time.monotonic())
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_client_that_leaves_cancels_its_request():
    async with serving() as (app, port):
        async with client(port) as (_, writer):
            writer.write(post(b"x", "/hold"))
            await until(lambda: app.held)
        await until(lambda: app.statuses)
        assert app.held[0].ctx.error is not None
        assert app.statuses == [499]
        app.held[0].respond(Response((b"late",)))  # nobody listens; nothing happens
        assert app.statuses == [499]


async def test_a_client_that_does_not_read_is_cut():
    async with serving(write_timeout_s=0.01) as (app, port), client(port) as (_, writer):
        writer.transport.pause_reading()
        writer.write(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n" * 8)
        await until(lambda: any(connection._paused for connection in app.connections))
        for _ in range(2):  # seen stuck, then still stuck
            for connection in list(app.connections):
                connection.sweep(time.monotonic())
            await asyncio.sleep(0.05)
        for connection in list(app.connections):
            connection.sweep(time.monotonic())
        await until(lambda: not app.connections)


async def test_pipelined_requests_beyond_the_limit_wait_in_the_socket():
    async with serving(max_pipelined=2) as (app, port), client(port) as (reader, writer):
        writer.write(post(b"0", "/hold") + b"".join(post(b"%d" % i) for i in range(1, 9)))
        await until(lambda: app.held)
        assert len(app.statuses) == 0
        app.held[0].respond(Response((b"0",)))
        assert [(await read_response(reader))[2] for _ in range(9)] == [b"%d" % i for i in range(9)]


async def test_garbage_after_a_request_does_not_lose_the_answer_being_made():
    async with serving() as (app, port), client(port) as (reader, writer):
        writer.write(post(b"x", "/hold") + b"garbage\r\n\r\n")
        await until(lambda: app.held)
        app.held[0].respond(Response((b"kept",)))
        _, headers, body = await read_response(reader)
        assert body == b"kept"
        assert headers["connection"] == "close"


async def test_connections_beyond_the_limit_are_told_so():
    async with serving(max_connections=1) as (_, port), client(port) as (_, _), client(port) as (reader, _):
        assert (await read_response(reader))[0] == 503


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_bring_a_connection_down(data):
    async def scenario():
        async with serving() as (_, port):
            async with client(port) as (reader, writer):
                writer.write(data)
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 10)
            async with client(port) as (reader, writer):
                writer.write(post(b"still here"))
                assert (await read_response(reader))[2] == b"still here"

    uvloop.run(scenario())


UPGRADE = "connection: upgrade\r\nupgrade: x\r\n"


@pytest.mark.parametrize(
    ("extra", "length", "status"),
    [(UPGRADE, 99_999_999, 413), (UPGRADE + "a: " + "b" * 60_000 + "\r\n", 2, 431)],
)
async def test_a_refused_upgrade_hurts_nobody_else(extra, length, status):
    head = f"GET / HTTP/1.1\r\nhost: x\r\n{extra}content-length: {length}\r\n\r\n".encode()
    async with serving() as (app, port):
        async with client(port) as (reader, writer):
            writer.write(head + b"{}")
            assert (await read_response(reader))[0] == status
        assert app.statuses == []  # it was never handed to the application
        for size in (5, 100_000):
            async with client(port) as (reader, writer):
                writer.write(post(b"x" * size))
                assert len((await read_response(reader))[2]) == size


@pytest.mark.parametrize("extra", ["", UPGRADE])
async def test_a_thousand_pipelined_requests_are_all_answered(extra):
    async with serving() as (app, port), client(port) as (reader, writer):
        writer.write(post(b"first", "/hold") + b"".join(post(b"%d" % i, extra=extra) for i in range(1000)))
        await until(lambda: app.held)
        app.held[0].respond(Response((b"first",)))
        assert (await read_response(reader))[2] == b"first"
        for i in range(1000):
            assert (await read_response(reader))[2] == b"%d" % i


async def test_trailers_do_not_pass_for_headers():
    seen = []
    async with serving() as (app, port), client(port) as (reader, writer):
        handle = app.handle

        def spy(request):
            seen.append(request.headers)
            handle(request)

        app.handle = spy
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\na\r\n0\r\nauthorization: Bearer t\r\n\r\n")
        assert (await read_response(reader))[2] == b"a"
    assert b"authorization" not in seen[0]


async def test_endless_trailers_and_chunk_framing_are_cut():
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    extension = b";" + b"e" * 15_000
    for flood in (b"0\r\n" + b"t: v\r\n" * 200_000, b"".join(b"1%b\r\na\r\n" % extension for _ in range(100))):
        async with serving() as (_, port), client(port) as (reader, writer):
            with contextlib.suppress(ConnectionError):
                for at in range(0, len(flood), 50_000):
                    writer.write((head if at == 0 else b"") + flood[at : at + 50_000])
                    await writer.drain()
                    await asyncio.sleep(0)
            assert (await read_response(reader))[0] in (400, 431)


async def test_many_tiny_chunks_cost_no_more_than_their_bytes():
    async with serving() as (_, port), client(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nab\r\n" * 100_000 + b"0\r\n\r\n")
        assert (await read_response(reader))[2] == b"ab" * 100_000


async def test_the_absolute_form_is_understood():
    async with serving() as (app, port), client(port) as (_, writer):
        writer.write(b"GET http://x:1/hold?a=b HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: app.held)
        assert (app.held[0].path, app.held[0].query) == ("/hold", "a=b")
