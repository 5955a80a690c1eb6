"""How a thread or an asyncio task sleeps until somebody wakes it; what channels put into their queues.

A waiter belongs to one sleeper. `wake` may come from any thread, any number of times, before or during the sleep; a
wake that comes early makes the next `wait` return at once, so none is lost. Waking for nothing is allowed: whoever
slept looks again.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Protocol

from headrace.errors import HeadraceError

__all__ = ["TaskWaiter", "ThreadWaiter", "Waiter"]


class Waiter(Protocol):
    def wake(self) -> bool:
        """Let the sleeper go on; False when it cannot any more (its event loop is closed)."""


class ThreadWaiter:
    """Sleeps in the calling thread."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, timeout_s: float | None) -> None:
        self._gate.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self) -> bool:
        with suppress(RuntimeError):  # it is open already
            self._gate.release()
        return True

    def on_cancel(self, _: HeadraceError) -> None:
        """`wake`, in the shape that `Context.on_cancel` wants."""
        self.wake()


class TaskWaiter:
    """Sleeps in the current asyncio task."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    async def wait(self, timeout_s: float | None) -> None:
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._open)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()
            self._future = self._loop.create_future()

    def wake(self) -> bool:
        if asyncio._get_running_loop() is self._loop:
            self._open()
            return True
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def on_cancel(self, _: HeadraceError) -> None:
        """`wake`, in the shape that `Context.on_cancel` wants."""
        self.wake()

    def _open(self) -> None:
        if not self._future.done():
            self._future.set_result(None)
