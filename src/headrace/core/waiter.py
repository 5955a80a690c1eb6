"""How a thread or an asyncio task sleeps until somebody wakes it; what channels put into their queues.

A waiter belongs to one sleeper. `wake` may come from any thread, any number of times, before or during the sleep; a
wake that comes early makes the next `wait` return at once, so none is lost. Waking for nothing is allowed: whoever
slept looks again. `block` and `ablock` are that loop: try, sleep, try again, until it works or the time is up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Protocol

from headrace.core.context import Context
from headrace.errors import DeadlineExceeded, HeadraceError

__all__ = ["Operation", "TaskWaiter", "ThreadWaiter", "Waiter", "ablock", "block"]


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


class Operation(Protocol):
    """Something that succeeds at once or has to be waited for."""

    def attempt(self, waiter: Waiter | None, front: bool) -> bool:
        """Do it, or enrol `waiter` (at the front when it waits not for the first time) and return False."""

    def leave(self, waiter: Waiter) -> None:
        """`waiter` sleeps no more."""


def block(operation: Operation, timeout_s: float | None, ctx: Context | None) -> None:
    """Do it, sleeping in this thread as often as need be.

    Raises `DeadlineExceeded` after `timeout_s`, the error of `ctx` when that ends first, and what `attempt` raises.
    """
    if ctx is not None:
        ctx.check()
    if operation.attempt(None, False):
        return
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    waiter = ThreadWaiter()
    undo = ctx.on_cancel(waiter.on_cancel) if ctx is not None else None
    try:
        front = False
        while not operation.attempt(waiter, front):
            waiter.wait(_patience_s(until_s, timeout_s, ctx))
            front = True
            if ctx is not None:
                ctx.check()
    finally:
        if undo is not None:
            undo()
        operation.leave(waiter)


async def ablock(operation: Operation, timeout_s: float | None, ctx: Context | None) -> None:
    """`block` for an asyncio task."""
    if ctx is not None:
        ctx.check()
    if operation.attempt(None, False):
        return
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    waiter = TaskWaiter()
    undo = ctx.on_cancel(waiter.on_cancel) if ctx is not None else None
    try:
        front = False
        while not operation.attempt(waiter, front):
            await waiter.wait(_patience_s(until_s, timeout_s, ctx))
            front = True
            if ctx is not None:
                ctx.check()
    finally:
        if undo is not None:
            undo()
        operation.leave(waiter)


def _patience_s(until_s: float | None, timeout_s: float | None, ctx: Context | None) -> float | None:
    """Seconds to sleep before looking again; raises `DeadlineExceeded` when `until_s` is past."""
    left_s = None
    if until_s is not None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"waited {timeout_s} s in vain")
    limit_s = ctx.remaining_s() if ctx is not None else None
    if left_s is None or limit_s is None:
        return limit_s if left_s is None else left_s
    return min(left_s, limit_s)
