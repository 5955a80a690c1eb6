"""The end of a context reaches whoever waits under it: a context in, the current task cancelled when it ends."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from headrace.core.context import Context
from headrace.errors import DeadlineExceeded, HeadraceError

__all__ = ["Watch"]


class Watch:
    """`with Watch(ctx):` around awaits of one task. When `ctx` ends, from any thread or by its deadline, the await
    that is pending is cancelled and the context's error is raised instead; a cancellation from elsewhere passes.

    Args:
        ctx: Its end is the end of the block.
        expired: Message of `DeadlineExceeded` when it is this watch that notices the deadline; default: the context's.
    """

    __slots__ = ("_before", "_ctx", "_expired", "_loop", "_open", "_task", "_timer", "_undo", "fired")

    def __init__(self, ctx: Context, expired: str = "") -> None:
        self._ctx = ctx
        self._expired = expired
        self.fired = False

    def __enter__(self) -> Watch:
        ctx = self._ctx
        ctx.check()
        task = asyncio.current_task()
        assert task is not None, "a Watch belongs to a task"
        self._task = task
        self._before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._undo = ctx.on_cancel(self._ended)
        remaining_s = ctx.remaining_s()
        self._timer = None if remaining_s is None else self._loop.call_later(remaining_s, self._expire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._undo()
        if self._timer is not None:
            self._timer.cancel()
        if self.fired and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise self.reason() from None

    def reason(self) -> HeadraceError:
        """Why the context ended."""
        assert self._ctx.error is not None
        return self._ctx.error.with_traceback(None)

    def _expire(self) -> None:
        request = self._ctx.request_id
        self._ctx.cancel(DeadlineExceeded(self._expired or f"request {request}: deadline exceeded"))

    def _ended(self, _: HeadraceError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._open:
            self.fired = True
            self._task.cancel()
