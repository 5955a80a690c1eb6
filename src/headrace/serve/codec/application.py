"""What a connection needs of the server it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.serve.codec.message import Limits, Request

if TYPE_CHECKING:
    from headrace.serve.codec.http import HttpProtocol

__all__ = ["Application"]


class Application(Protocol):
    """What the protocol needs of the server it belongs to."""

    limits: Limits
    scratch: memoryview
    connections: set[HttpProtocol]
    draining: bool

    def handle(self, request: Request, /) -> None:
        """Answer `request` now or later through `request.respond`; must not raise."""

    def fail(self, request: Request, error: Exception, /) -> None:
        """Answer `request` with `error` through `request.respond`."""

    def finished(self, request: Request, status: int, /) -> None:
        """`request` was answered with `status`, or given up (499) because its connection was lost."""

    def clock(self) -> float:
        """`time.monotonic()`, up to a second old: good enough for time limits, and cheaper."""

    def date(self) -> str:
        """The `Date` header's value, cached for a second."""
