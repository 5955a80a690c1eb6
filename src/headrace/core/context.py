"""What travels with a unit of work through every layer: its id, deadline, cancellation and trace.

A context is made at the edge (server, CLI, test) and handed down; nothing blocks past it. Cancelling is sticky, may
come from any thread, and runs the registered callbacks exactly once. `child` narrows the deadline for a part of the
work, which then ends with the whole.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from functools import partial
from threading import RLock

from headrace.errors import Cancelled, DeadlineExceeded, HeadraceError

__all__ = ["Context"]

_log = logging.getLogger(__name__)

# Orders ending against registration, for all contexts: held for a few instructions and never while a callback runs, so
# that one lock is enough and making a context costs none. Re-entrant, because a finaliser may end a context anywhere.
_lock = RLock()


class Context:
    """Deadline, cancellation, trace and identity of one request. Thread-safe.

    Attributes:
        request_id: Chosen by the client or made here; appears in every log line, span and error of the request.
        deadline_s: `time.monotonic()` value after which nobody waits for the answer, or None.
        priority: Higher is served first among queued work; 0 is normal.
        tenant: Whose budget this work is charged to.
        trace: W3C `traceparent` of the parent span, or "" when the request is not traced.
        error: Why the context ended (`Cancelled`, `DeadlineExceeded`), or None while it is live.
    """

    __slots__ = ("__weakref__", "_callbacks", "deadline_s", "error", "priority", "request_id", "tenant", "trace")

    def __init__(
        self,
        request_id: str = "",
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str = "",
        trace: str = "",
    ) -> None:
        self.request_id = request_id or os.urandom(8).hex()
        self.deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.priority = priority
        self.tenant = tenant
        self.trace = trace
        self.error: HeadraceError | None = None
        self._callbacks: dict[object, Callable[[HeadraceError], None]] | None = None

    def remaining_s(self) -> float | None:
        """Seconds left before the deadline (never negative), or None without one."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())

    def limit(self, timeout_s: float) -> None:
        """Move the deadline to `timeout_s` from now unless an earlier one stands; for the owner, before work begins."""
        deadline_s = time.monotonic() + timeout_s
        if self.deadline_s is None or deadline_s < self.deadline_s:
            self.deadline_s = deadline_s

    def check(self) -> None:
        """Raise the error that ended this context, or `DeadlineExceeded` when its time is up."""
        if self.error is None:
            if self.deadline_s is None or time.monotonic() < self.deadline_s:
                return
            self.cancel(DeadlineExceeded(f"request {self.request_id}: deadline exceeded"))
        assert self.error is not None
        # Without the traceback of an earlier raise, which would grow with every check and keep its frames alive.
        raise self.error.with_traceback(None)

    def cancel(self, error: HeadraceError | None = None) -> None:
        """End the context; the first call wins and runs the callbacks on its thread, later calls do nothing."""
        error = error or Cancelled(f"request {self.request_id}: cancelled")
        with _lock:
            if self.error is not None:
                return
            self.error = error
        while (callback := self._next_callback()) is not None:
            try:
                callback(error)
            except Exception:  # the others must still hear of it
                _log.exception("request %s: a cancellation callback failed", self.request_id)

    def on_cancel(self, callback: Callable[[HeadraceError], None]) -> Callable[[], None]:
        """Run `callback(error)` once when the context ends (at once if it has); returns its undo.

        The callback runs on whichever thread ends the context and must be short. After the undo has returned, the
        callback will not be started any more; it may still be running on another thread.
        """
        key = object()
        with _lock:
            error = self.error
            if error is None:
                if self._callbacks is None:
                    self._callbacks = {}
                self._callbacks[key] = callback
                return partial(self._forget, key)
        callback(error)
        return _nothing

    def child(self, timeout_s: float | None = None) -> Context:
        """A context for a part of this work: same identity, the earlier of both deadlines, ended when this one ends.

        Ending the child leaves its parent alone. The parent does not keep the child alive, so a long-lived parent does
        not collect finished children.
        """
        child = Context(self.request_id, priority=self.priority, tenant=self.tenant, trace=self.trace)
        child.deadline_s = self.deadline_s
        if timeout_s is not None:
            child.limit(timeout_s)
        undo: Callable[[], None] = _nothing
        reference = weakref.ref(child, lambda _: undo())

        def end(error: HeadraceError) -> None:
            living = reference()
            if living is not None:
                living.cancel(error)

        undo = self.on_cancel(end)
        return child

    def _next_callback(self) -> Callable[[HeadraceError], None] | None:
        with _lock:
            return self._callbacks.pop(next(iter(self._callbacks))) if self._callbacks else None

    def _forget(self, key: object) -> None:
        with _lock:
            if self._callbacks is not None:
                self._callbacks.pop(key, None)


def _nothing() -> None:
    pass
