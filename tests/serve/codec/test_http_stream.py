"""Answers sent piece by piece, as raw sockets see them."""

import asyncio
import time

import pytest

from headrace.errors import HeadraceError
from headrace.serve.codec.message import Response


@pytest.fixture
async def open_stream(wire):
    """`app, stream, reader, writer` of an answer that has begun."""
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"", "/stream"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream\r\n" in head
        assert b"transfer-encoding: chunked\r\n" in head
        assert b"x: y\r\n" in head
        assert b"content-length" not in head
        yield app, app.streams[0], reader, writer


def _sweep(app):
    for connection in list(app.connections):
        connection.sweep(time.monotonic())


async def test_pieces_arrive_as_they_are_written_and_the_connection_is_kept(wire, open_stream):
    app, stream, reader, writer = open_stream
    stream.write(b"one")
    assert await asyncio.wait_for(reader.readexactly(8), 10) == b"3\r\none\r\n"
    stream.write(b"")  # an empty chunk would end the answer
    stream.write(b"t" * 300)
    stream.end()
    stream.end()
    assert await wire.read_chunks(reader) == [b"t" * 300]
    assert app.statuses == [200]
    assert stream.closed
    stream.write(b"late")
    writer.write(wire.post(b"next"))
    assert (await wire.read_response(reader))[2] == b"next"


async def test_requests_behind_a_stream_wait_for_its_end(wire, open_stream):
    app, stream, reader, writer = open_stream
    writer.write(wire.post(b"second") + wire.post(b"", "/stream") + wire.post(b"fourth"))
    await asyncio.sleep(0.05)
    assert len(app.held) == 1
    stream.write(b"a")
    stream.end()
    assert await wire.read_chunks(reader) == [b"a"]
    assert (await wire.read_response(reader))[2] == b"second"
    await reader.readuntil(b"\r\n\r\n")
    app.streams[1].write(b"b")
    app.streams[1].end()
    assert await wire.read_chunks(reader) == [b"b"]
    assert (await wire.read_response(reader))[2] == b"fourth"


async def test_http_1_0_reads_to_the_end_of_the_connection(wire):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(b"GET /stream HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert b"connection: close\r\n" in head
        assert b"transfer-encoding" not in head
        app.streams[0].write(b"one ")
        app.streams[0].write(b"two")
        app.streams[0].end()
        assert await asyncio.wait_for(reader.read(), 10) == b"one two"
    assert app.statuses == [200]


async def test_connection_close_is_kept_to(wire):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(b"GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert b"connection: close\r\n" in head
        app.streams[0].write(b"one")
        app.streams[0].end()
        assert await wire.read_chunks(reader) == [b"one"]
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_head_gets_the_head_alone(wire):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(b"HEAD /stream HTTP/1.1\r\nhost: x\r\n\r\n" + wire.post(b"after"))
        assert b"text/event-stream" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert app.streams[0].closed
        app.streams[0].write(b"body")
        assert (await wire.read_response(reader))[2] == b"after"


async def test_a_client_that_leaves_ends_stream_and_context(wire):
    async with wire.serving() as (app, port):
        async with wire.client(port) as (reader, writer):
            writer.write(wire.post(b"", "/stream"))
            await reader.readuntil(b"\r\n\r\n")
            app.streams[0].write(b"one")
        await wire.until(lambda: app.statuses)
        assert app.statuses == [499]
        assert app.streams[0].closed
        assert app.held[0].ctx.error is not None
        assert app.streams[0].write(b"two")
        app.streams[0].end()
        await asyncio.wait_for(app.streams[0].ready(), 10)
        late = app.held[0].stream(Response())
        assert late.closed
        assert app.statuses == [499]


async def test_a_slow_reader_pauses_the_producer_and_holds_bounded_memory(wire):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"", "/stream"))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        (connection,) = app.connections
        stream, resumed, most, sent = app.streams[0], [], 0, 0
        stream.on_resume = lambda: resumed.append(sent)
        for _ in range(100_000):
            if not stream.write(b"x" * 1000):
                break
            sent += 1
            most = max(most, connection._transport.get_write_buffer_size())
            await asyncio.sleep(0)
        else:
            pytest.fail("the producer was never told to stop")
        assert most < 1 << 20
        assert stream.paused
        waiting = asyncio.ensure_future(stream.ready())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        writer.transport.resume_reading()
        ended = asyncio.ensure_future(wire.read_chunks(reader))
        await asyncio.wait_for(waiting, 10)
        assert resumed == [sent]
        stream.end()
        assert len(await ended) == sent + 1


async def test_a_reader_that_takes_nothing_is_cut(wire):
    async with wire.serving(write_timeout_s=0.01) as (app, port), wire.client(port) as (reader, writer):
        writer.write(wire.post(b"", "/stream"))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        stream = app.streams[0]
        for _ in range(1000):
            if not stream.write(b"x" * 65536):
                break
            await asyncio.sleep(0)
        assert stream.paused
        waiting = asyncio.ensure_future(stream.ready())
        for _ in range(3):  # seen stuck, then still stuck
            _sweep(app)
            await asyncio.sleep(0.05)
        await asyncio.wait_for(waiting, 10)
        assert stream.closed
        assert app.statuses == [499]


async def test_a_stream_without_events_is_left_alone(wire):
    async with (
        wire.serving(keep_alive_s=0.01, write_timeout_s=0.01) as (app, port),
        wire.client(port) as (reader, writer),
    ):
        writer.write(wire.post(b"", "/stream"))
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            await asyncio.sleep(0.03)
            _sweep(app)
        app.streams[0].write(b"still here")
        app.streams[0].end()
        assert await wire.read_chunks(reader) == [b"still here"]


@pytest.mark.parametrize("how", ["cut", "fail", "respond"])
async def test_an_error_in_mid_stream_cuts_the_answer(wire, open_stream, how):
    app, stream, reader, _ = open_stream
    stream.write(b"half")
    if how == "cut":
        stream.cut()
    elif how == "fail":
        app.held[0].fail(HeadraceError("broke"))
    else:
        app.held[0].respond(Response(status=500))
    assert await asyncio.wait_for(reader.read(), 10) == b"4\r\nhalf\r\n"
    assert app.statuses == [200 if how == "cut" else 500]
    assert stream.closed


async def test_an_error_in_mid_stream_of_http_1_0_resets_the_connection(wire):
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        writer.write(b"GET /stream HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        app.streams[0].write(b"half")
        await reader.readexactly(4)
        app.streams[0].cut()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
    assert app.statuses == [200]


async def test_a_malformed_request_behind_a_stream_lets_it_finish(wire, open_stream):
    app, stream, reader, writer = open_stream
    writer.write(b"nonsense\r\n\r\n")
    await asyncio.sleep(0.05)
    stream.write(b"all of it")
    stream.end()
    assert await wire.read_chunks(reader) == [b"all of it"]
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert app.statuses == [200]


async def test_draining_lets_the_stream_finish_then_closes(wire, open_stream):
    app, stream, reader, _ = open_stream
    app.draining = True
    _sweep(app)
    (connection,) = app.connections
    assert not connection.idle()
    stream.write(b"last words")
    stream.end()
    assert await wire.read_chunks(reader) == [b"last words"]
    assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_closed_connection_takes_no_more(wire, open_stream):
    app, stream, reader, _ = open_stream
    (connection,) = app.connections
    connection.close()
    assert stream.closed
    stream.write(b"dropped")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    await wire.until(lambda: app.statuses)
    assert app.statuses == [499]
    assert app.held[0].ctx.error is not None
