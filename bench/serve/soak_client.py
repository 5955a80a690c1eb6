"""One client connection of the soak test: raw HTTP/1.1 over asyncio streams, so that it can also misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

__all__ = ["Answer", "Connection", "Dropped", "post"]


class Dropped(Exception):
    """The server closed or reset the connection before a whole answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def post(path: str, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> bytes:
    """The bytes of a POST; `length` overrides the Content-Length that is announced."""
    lines = [f"POST {path} HTTP/1.1", "Host: soak", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection:
    """Kept alive while the server allows it; opened anew when needed."""

    def __init__(self, port: int, timeout_s: float = 60.0) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes, *, pieces: int = 1, pause_s: float = 0.0) -> None:
        """Write `data` in `pieces`, pausing between them. A reset by the server is left for `receive` to report."""
        if self._streams is None:
            async with asyncio.timeout(self._timeout_s):
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        _, writer = self._streams
        size = max(1, -(-len(data) // pieces))
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), size):
                if start and pause_s:
                    await asyncio.sleep(pause_s)
                writer.write(data[start : start + size])
                async with asyncio.timeout(self._timeout_s):
                    await writer.drain()

    async def receive(self) -> Answer:
        """Read one answer. Raises `Dropped`, or `TimeoutError` when the server stays silent."""
        assert self._streams is not None
        reader, _ = self._streams
        try:
            async with asyncio.timeout(self._timeout_s):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {}
                for line in head[1:]:
                    name, colon, value = line.partition(":")
                    if colon:
                        headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.close()
            raise Dropped(str(error)) from error
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return Answer(int(head[0].split()[1]), headers, body)

    async def peek(self, size: int) -> None:
        """Read at most `size` bytes of an answer and forget them."""
        assert self._streams is not None
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(self._timeout_s):
                await self._streams[0].read(size)

    async def close(self, *, abort: bool = False) -> None:
        """Close; `abort` resets the connection instead of ending it politely."""
        if self._streams is None:
            return
        (_, writer), self._streams = self._streams, None
        if abort:
            writer.transport.abort()
        else:
            writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(5):
                await writer.wait_closed()
