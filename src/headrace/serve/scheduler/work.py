"""One request's rows on their way through the batcher."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace.core.context import Context
from headrace.errors import DeadlineExceeded, HeadraceError
from headrace.serve.protocol import Tensors

_log = logging.getLogger(__name__)

__all__ = ["Done", "Failed", "Work"]

Done: TypeAlias = Callable[[Tensors | None, HeadraceError | None], None]
"""Called exactly once, on the event loop, with the outputs or the error."""

Failed: TypeAlias = Callable[[HeadraceError, float], None]


class Work:
    """Rows of one request, the context they run under, and who is told. `finish` tells exactly once.

    Attributes:
        parameters: What the request asks of the backend; only a `ConcurrentBackend` is told.
        failed: Told of an error, and after how many seconds, before `done` is.
        enqueued_s: `time.perf_counter()` when it was made.
    """

    __slots__ = ("ctx", "done", "enqueued_s", "failed", "finished", "guarded", "parameters", "rows", "tensors")

    def __init__(
        self,
        tensors: Tensors,
        rows: int,
        ctx: Context,
        done: Done,
        failed: Failed,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.tensors = tensors
        self.rows = rows
        self.ctx = ctx
        self.done = done
        self.failed = failed
        self.parameters = parameters
        self.enqueued_s = time.perf_counter()
        self.finished = False
        self.guarded = False

    def finish(self, result: Tensors | None, error: HeadraceError | None = None) -> None:
        """Deliver the outcome; later calls do nothing."""
        if not self.finished:
            self.finished = True
            if error is not None:
                self.failed(error, time.perf_counter() - self.enqueued_s)
            done, self.done = self.done, _told
            try:
                done(result, error)
            except Exception:  # whoever is told must not take the rest of the batch down
                _log.exception("request %s: its answer could not be delivered", self.ctx.request_id)

    def release(self) -> None:
        """Let go of the inputs, once no run reads them any more: a guarded deadline may hold the work much longer."""
        self.tensors = {}

    def alive(self, now_s: float) -> bool:
        """False once answered, cancelled or past its deadline (then told so). `now_s`: `time.monotonic()`."""
        if self.finished:
            return False
        ctx = self.ctx
        if ctx.error is None and ctx.deadline_s is not None and now_s >= ctx.deadline_s:
            ctx.cancel(DeadlineExceeded(f"request {ctx.request_id}: deadline exceeded"))
        # Delivered without being raised here: a traceback would keep the frames, and all they hold, alive.
        if ctx.error is not None:
            self.finish(None, ctx.error)
        return not self.finished


def _told(result: Tensors | None, error: HeadraceError | None) -> None:
    pass
