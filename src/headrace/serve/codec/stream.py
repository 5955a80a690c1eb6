"""An answer sent piece by piece: bytes from a handler in, chunks on the wire out, and word back when the client lags.

A piece costs one formatting and one write of the transport, no task and no future, so that thousands of small events a
second leave the event loop to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Stream"]


class Stream:
    """The open answer of one request. Belongs to the event loop; `Request.stream` makes it.

    Attributes:
        closed: Nothing more can be sent: it was ended, or the client is gone. Writes do nothing then.
        paused: More is waiting to be sent than the transport wants to hold. A producer stops until `ready` or
            `on_resume`; a client that then takes nothing for `Limits.write_timeout_s` is cut.
        on_resume: Called when the client has caught up.
    """

    __slots__ = ("_chunked", "_finish", "_waiter", "_write", "closed", "on_resume", "paused")

    def __init__(self, write: Callable[[bytes], None], finish: Callable[[bool], None], *, chunked: bool) -> None:
        self.closed = False
        self.paused = False
        self.on_resume: Callable[[], None] | None = None
        self._write = write
        self._finish = finish
        self._chunked = chunked
        self._waiter: asyncio.Future[None] | None = None

    def write(self, piece: bytes) -> bool:
        """Send `piece` now; whether more may follow at once."""
        if piece and not self.closed:
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
        return not self.paused

    async def ready(self) -> None:
        """Wait until the client has caught up; returns at once when it has, or when the stream is closed."""
        while self.paused and not self.closed:
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def end(self) -> None:
        """The answer is complete. Idempotent."""
        if self.closed:
            return
        if self._chunked:
            self._write(b"0\r\n\r\n")
        self.close()
        self._finish(True)

    def cut(self) -> None:
        """Give up: the connection is closed so that the client cannot take what it got for the whole. Idempotent."""
        if not self.closed:
            self.close()
            self._finish(False)

    # -- for the connection ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """The way to the client is gone."""
        self.closed = True
        self._wake()

    def pause(self) -> None:
        """The transport holds too much."""
        self.paused = True

    def resume(self) -> None:
        """The transport has sent most of what it held."""
        self.paused = False
        self._wake()
        if self.on_resume is not None and not self.closed:
            self.on_resume()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
