"""What slow, rude and hostile clients get: a clear answer or a cut, and nobody else is hurt."""

import asyncio
import contextlib
import time

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serve.codec.message import Response

UPGRADE = "connection: upgrade\r\nupgrade: x\r\n"


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
async def test_malformed_requests_are_refused_and_the_connection_closed(wire, request_bytes, status):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(request_bytes)
        got, _, body = await wire.read_response(reader)
        assert got == status
        assert b'"error"' in body
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_the_answer_to_an_oversized_upload_survives_the_upload(wire):
    async with wire.serving(max_body_bytes=1000) as (_, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"x" * 3_000_000))
        status, _, body = await wire.read_response(reader)
        assert status == 413
        assert b"3000000 bytes; at most 1000" in body


async def test_a_chunked_body_is_cut_at_the_limit(wire):
    async with wire.serving(max_body_bytes=1000) as (_, port), wire.client(port) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"y" * 1024 + b"\r\n"
        )
        assert (await wire.read_response(reader))[0] == 413


async def test_an_endless_header_is_cut(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                writer.write(b"a" * 65536)
                await writer.drain()
        assert (await wire.read_response(reader))[0] == 431


@pytest.mark.parametrize("sent", [b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc"])
async def test_slow_requests_are_cut_with_408(wire, sent):
    async with (
        wire.serving(header_timeout_s=0.05, body_timeout_s=0.05) as (app, port),
        wire.client(port) as (reader, writer),
    ):
        writer.write(sent)
        await asyncio.sleep(0.1)
        for connection in list(app.connections):
            connection.sweep(time.monotonic())
        assert (await wire.read_response(reader))[0] == 408


async def test_idle_connections_are_closed(wire):
    async with wire.serving(keep_alive_s=0.01) as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"x"))
        await wire.read_response(reader)
        await asyncio.sleep(0.02)
        for connection in list(app.connections):
            connection.sweep(time.monotonic())
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_client_that_leaves_cancels_its_request(wire):
    async with wire.serving() as (app, port):
        async with wire.client(port) as (_, writer):
            writer.write(wire.post(b"x", "/hold"))
            await wire.until(lambda: app.held)
        await wire.until(lambda: app.statuses)
        assert app.held[0].ctx.error is not None
        assert app.statuses == [499]
        app.held[0].respond(Response((b"late",)))  # nobody listens; nothing happens
        assert app.statuses == [499]


async def test_a_client_that_does_not_read_is_cut(wire):
    async with wire.serving(write_timeout_s=0.01) as (app, port), wire.client(port) as (_, writer):
        writer.transport.pause_reading()
        writer.write(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n" * 8)
        await wire.until(lambda: any(connection._paused for connection in app.connections))
        for _ in range(2):  # seen stuck, then still stuck
            for connection in list(app.connections):
                connection.sweep(time.monotonic())
            await asyncio.sleep(0.05)
        for connection in list(app.connections):
            connection.sweep(time.monotonic())
        await wire.until(lambda: not app.connections)


async def test_pipelined_requests_beyond_the_limit_wait_in_the_socket(wire):
    async with wire.serving(max_pipelined=2) as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"0", "/hold") + b"".join(wire.post(b"%d" % i) for i in range(1, 9)))
        await wire.until(lambda: app.held)
        assert len(app.statuses) == 0
        app.held[0].respond(Response((b"0",)))
        assert [(await wire.read_response(reader))[2] for _ in range(9)] == [b"%d" % i for i in range(9)]


async def test_garbage_after_a_request_does_not_lose_the_answer_being_made(wire):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"x", "/hold") + b"garbage\r\n\r\n")
        await wire.until(lambda: app.held)
        app.held[0].respond(Response((b"kept",)))
        _, headers, body = await wire.read_response(reader)
        assert body == b"kept"
        assert headers["connection"] == "close"


async def test_connections_beyond_the_limit_are_told_so(wire):
    async with (
        wire.serving(max_connections=1) as (_, port),
        wire.client(port) as (_, _),
        wire.client(port) as (reader, _),
    ):
        assert (await wire.read_response(reader))[0] == 503


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_bring_a_connection_down(wire, data):
    async def scenario():
        async with wire.serving() as (_, port):
            async with wire.client(port) as (reader, writer):
                writer.write(data)
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 10)
            async with wire.client(port) as (reader, writer):
                writer.write(wire.post(b"still here"))
                assert (await wire.read_response(reader))[2] == b"still here"

    uvloop.run(scenario())


@pytest.mark.parametrize(
    ("extra", "length", "status"),
    [(UPGRADE, 99_999_999, 413), (UPGRADE + "a: " + "b" * 60_000 + "\r\n", 2, 431)],
)
async def test_a_refused_upgrade_hurts_nobody_else(wire, extra, length, status):
    head = f"GET / HTTP/1.1\r\nhost: x\r\n{extra}content-length: {length}\r\n\r\n".encode()
    async with wire.serving() as (app, port):
        async with wire.client(port) as (reader, writer):
            writer.write(head + b"{}")
            assert (await wire.read_response(reader))[0] == status
        assert app.statuses == []  # it was never handed to the application
        for size in (5, 100_000):
            async with wire.client(port) as (reader, writer):
                writer.write(wire.post(b"x" * size))
                assert len((await wire.read_response(reader))[2]) == size


@pytest.mark.parametrize("extra", ["", UPGRADE])
async def test_a_thousand_pipelined_requests_are_all_answered(wire, extra):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"first", "/hold") + b"".join(wire.post(b"%d" % i, extra=extra) for i in range(1000)))
        await wire.until(lambda: app.held)
        app.held[0].respond(Response((b"first",)))
        assert (await wire.read_response(reader))[2] == b"first"
        for i in range(1000):
            assert (await wire.read_response(reader))[2] == b"%d" % i


async def test_trailers_do_not_pass_for_headers(wire):
    seen = []
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        handle = app.handle

        def spy(request):
            seen.append(request.headers)
            handle(request)

        app.handle = spy
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\na\r\n0\r\nauthorization: Bearer t\r\n\r\n")
        assert (await wire.read_response(reader))[2] == b"a"
    assert b"authorization" not in seen[0]


async def test_endless_trailers_and_chunk_framing_are_cut(wire):
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    extension = b";" + b"e" * 15_000
    for flood in (b"0\r\n" + b"t: v\r\n" * 200_000, b"".join(b"1%b\r\na\r\n" % extension for _ in range(100))):
        async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
            with contextlib.suppress(ConnectionError):
                for at in range(0, len(flood), 50_000):
                    writer.write((head if at == 0 else b"") + flood[at : at + 50_000])
                    await writer.drain()
                    await asyncio.sleep(0)
            assert (await wire.read_response(reader))[0] in (400, 431)


async def test_many_tiny_chunks_cost_no_more_than_their_bytes(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nab\r\n" * 100_000 + b"0\r\n\r\n")
        assert (await wire.read_response(reader))[2] == b"ab" * 100_000
