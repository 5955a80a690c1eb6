"""What travels with a unit of work through every layer: its id, deadline, cancellation and trace.

A context is made at the edge (server, CLI, test) and handed down; nothing blocks past it. Cancelling is sticky, may
come from any thread, and runs the registered callbacks exactly once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from headrace.errors import Cancelled, DeadlineExceeded, HeadraceError

__all__ = ["Context"]


class Context:
    """Deadline, cancellation, trace and identity of one request.

    Attributes:
        request_id: Chosen by the client or made here; appears in every log line, span and error of the request.
        deadline_s: `time.monotonic()` value after which nobody waits for the answer, or None.
        priority: Higher is served first among queued work; 0 is normal.
        tenant: Whose budget this work is charged to.
        trace: W3C `traceparent` of the parent span, or "" when the request is not traced.
        error: Why the context ended (`Cancelled`, `DeadlineExceeded`), or None while it is live.
    """

    __slots__ = ("_callbacks", "deadline_s", "error", "priority", "request_id", "tenant", "trace")

    def __init__(
        self,
        request_id: str = "",
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str = "",
        trace: str = "",
    ) -> None:
        self.request_id = request_id or secrets.token_hex(8)
        self.deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.priority = priority
        self.tenant = tenant
        self.trace = trace
        self.error: HeadraceError | None = None
        self._callbacks: list[Callable[[HeadraceError], None]] | None = None

    def remaining_s(self) -> float | None:
        """Seconds left before the deadline (never negative), or None without one."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())

    def check(self) -> None:
        """Raise the error that ended this context, or `DeadlineExceeded` when its time is up."""
        if self.error is not None:
            raise self.error
        if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
            self.cancel(DeadlineExceeded(f"request {self.request_id}: deadline exceeded"))
            raise self.error or DeadlineExceeded(f"request {self.request_id}: deadline exceeded")

    def cancel(self, error: HeadraceError | None = None) -> None:
        """End the context; the first call wins and runs the callbacks, later calls do nothing."""
        if self.error is not None:
            return
        self.error = error or Cancelled(f"request {self.request_id}: cancelled")
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self.error)

    def on_cancel(self, callback: Callable[[HeadraceError], None]) -> Callable[[], None]:
        """Run `callback(error)` once when the context ends (at once if it has); returns its undo."""
        if self.error is not None:
            callback(self.error)
            return lambda: None
        if self._callbacks is None:
            self._callbacks = []
        callbacks = self._callbacks
        callbacks.append(callback)

        def remove() -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        return remove
