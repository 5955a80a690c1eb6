"""Framing, order and forms of HTTP/1.1, as a well-behaved client uses them."""

import asyncio

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=4),
    st.lists(st.integers(1, 150_000), min_size=1, max_size=6),
)
def test_any_fragmentation_of_any_pipeline_gives_the_bodies_back_in_order(wire, sizes, cuts):
    async def scenario():
        bodies = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
        stream = b"".join(wire.post(body) for body in bodies)
        async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
            offset = 0
            for cut in [*cuts, len(stream)]:
                writer.write(stream[offset : offset + cut])
                offset += cut
                await asyncio.sleep(0)
            for body in bodies:
                status, _, answer = await wire.read_response(reader)
                assert (status, answer == body) == (200, True)

    uvloop.run(scenario())


async def test_chunked_bodies_are_joined(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await wire.read_response(reader))[2] == b"abcde"


async def test_a_binary_tensor_starts_on_a_cache_line(wire):
    seen = []
    async with wire.serving() as (app, port), wire.client(port) as (reader, writer):
        handle = app.handle

        def spy(request):
            seen.append(request.body)
            handle(request)

        app.handle = spy
        writer.write(wire.post(b"j" * 77 + b"t" * 100_000, extra="inference-header-content-length: 77\r\n"))
        await wire.read_response(reader)
    import numpy as np

    assert np.frombuffer(seen[0], np.uint8)[77:].ctypes.data % 64 == 0


async def test_expect_100_is_answered_before_the_body(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await wire.read_response(reader))[2] == b"abc"


async def test_an_offered_upgrade_is_ignored_and_the_body_kept(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        extra = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
        writer.write(wire.post(b"hello", extra=extra))
        assert (await wire.read_response(reader))[2] == b"hello"
        for size in (5, 100_000):
            writer.write(wire.post(b"z" * size, extra=extra)[:-1])
            await asyncio.sleep(0.01)
            writer.write(b"z")
            assert len((await wire.read_response(reader))[2]) == size


async def test_head_gets_the_headers_of_get_and_no_body(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(b"HEAD /big HTTP/1.1\r\nhost: x\r\n\r\n" + wire.post(b"after"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert b"content-length: 8000010" in head
        assert (await wire.read_response(reader))[2] == b"after"


async def test_large_answers_arrive_whole(wire):
    async with wire.serving() as (_, port), wire.client(port) as (reader, writer):
        writer.write(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        assert len((await wire.read_response(reader))[2]) == 8_000_010


async def test_http_1_0_and_connection_close_end_the_connection(wire):
    async with wire.serving() as (_, port):
        for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"):
            async with wire.client(port) as (reader, writer):
                writer.write(head)
                _, headers, _ = await wire.read_response(reader)
                assert headers["connection"] == "close"
                assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_the_absolute_form_is_understood(wire):
    async with wire.serving() as (app, port), wire.client(port) as (_, writer):
        writer.write(b"GET http://x:1/hold?a=b HTTP/1.1\r\nhost: x\r\n\r\n")
        await wire.until(lambda: app.held)
        assert (app.held[0].path, app.held[0].query) == ("/hold", "a=b")
