"""The server: one event loop, one listening socket, a repository behind a router.

Life: `start` binds, `serve` runs until SIGTERM or Ctrl-C, then drains: the socket closes, readiness fails, open
requests are finished (at most `drain_timeout_s`), models are drained and freed. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from email.utils import formatdate
from itertools import count
from typing import Any, TypeAlias

import msgspec

from headrace.core.context import Context
from headrace.core.logs import fields
from headrace.core.telemetry import Tracer
from headrace.errors import Cancelled, ConfigError, HeadraceError, LoadFailed, Overloaded, Unavailable
from headrace.serve.address import is_loopback, why_not_bound
from headrace.serve.codec.http import HttpProtocol
from headrace.serve.codec.message import Limits, Request
from headrace.serve.codec.reader import SCRATCH_BYTES
from headrace.serve.codec.router import MethodNotAllowed, Route, Router
from headrace.serve.metrics import ServeMetrics
from headrace.serve.repository import Repository
from headrace.serve.routes.control import ControlGuard, control_routes
from headrace.serve.routes.docs import docs_routes
from headrace.serve.routes.health import health_routes
from headrace.serve.routes.oip import oip_routes
from headrace.serve.routes.pipelines import pipeline_routes

__all__ = ["Extension", "Server", "ServerSettings"]

_log = logging.getLogger(__name__)

BACKLOG = 2048
LAST_WORDS_S = 2.0
"""How long clients may take to hear that their requests were ended."""

MAX_FOUND = 1024
"""Targets whose route is remembered."""


Extension: TypeAlias = Callable[[list[Route]], list[Route]]
"""Given the server's routes, those to add; one of the same method and path takes the other's place."""


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the server listens and what it allows. `port` 0 takes a free one; `token` guards model control."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    drain_timeout_s: float = 30.0
    access_log: bool = False
    limits: Limits = Limits()


class Server:
    """Serves a repository over HTTP. Implements `serve.codec.application.Application`.

    Attributes:
        port: The bound port, after `start`.
        draining: No new work is taken.
    """

    def __init__(
        self,
        repository: Repository,
        metrics: ServeMetrics,
        settings: ServerSettings,
        tracer: Tracer | None = None,
        extend: Extension | None = None,
    ) -> None:
        self.limits = settings.limits
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: set[HttpProtocol] = set()
        self.draining = False
        self._now_s = time.monotonic()
        self.port = settings.port
        self._settings = settings
        self._repository = repository
        self._metrics = metrics
        self._tracer = tracer if tracer is not None and tracer.enabled else None
        self._guard = ControlGuard(settings.token, is_loopback(settings.host))
        max_body = settings.limits.max_body_bytes
        health = health_routes(metrics.registry, self._not_ready)
        self._untraced = frozenset(route.path for route in health)  # polled for ever, and nobody asks why they are slow
        routes = [
            *health,
            *oip_routes(repository, max_body),
            *pipeline_routes(repository, max_body),
            *control_routes(repository),
        ]
        if extend is not None:
            placed = {(route.method, route.path): route for route in (*routes, *extend(routes))}
            routes = list(placed.values())
        self._router = Router([*routes, *docs_routes(routes, self._names)])
        self._found: dict[tuple[bytes, bytes], tuple[Route, dict[str, str]]] = {}
        self._series: dict[tuple[str, int], Any] = {}
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: dict[asyncio.Task[None], Context] = {}
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._date = formatdate(usegmt=True)
        self._ids = count()
        self._id_prefix = secrets.token_hex(5)
        metrics.http_busy.set_function(lambda: float(self._in_flight))
        metrics.connections.set_function(lambda: float(len(self.connections)))

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind and begin to answer. Raises `ConfigError` when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: HttpProtocol(self), self._settings.host, self._settings.port, backlog=BACKLOG
            )
        except OSError as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise ConfigError(f"cannot listen on {where}: {why_not_bound(error)}") from error
        self.port = self._listener.sockets[0].getsockname()[1]
        if not is_loopback(self._settings.host):
            control = "needs the token" if self._settings.token else "is off unless --token is given"
            _log.warning(
                "%s: not a loopback address: inference is open to whoever reaches it; model control %s",
                self._settings.host or "all addresses",
                control,
            )
        self._sweep()

    async def serve(self) -> bool:
        """Run until SIGTERM or SIGINT, then drain; a second signal ends the draining. Whether it was drained."""
        loop = asyncio.get_running_loop()
        stop, hurry = asyncio.Event(), asyncio.Event()

        def signalled() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        await stop.wait()
        drained = asyncio.ensure_future(self.stop())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not drained.done():
            _log.warning("second signal: not waiting for %d open requests", self._in_flight)
            drained.cancel()
            return False
        return True

    async def stop(self) -> None:
        """Drain and close: refuse new connections, finish open requests, free the models. Idempotent."""
        if self.draining:
            return
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            if connection.idle():
                connection.close()
        try:
            await asyncio.wait_for(self._idle.wait(), self._settings.drain_timeout_s)
        except TimeoutError:
            _log.warning("%d requests were still open after %g s", self._in_flight, self._settings.drain_timeout_s)
            for ctx in list(self._tasks.values()):  # their clients are told why
                ctx.cancel(Unavailable("the server is shutting down"))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), LAST_WORDS_S)
        for connection in list(self.connections):
            connection.close()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.wait_for(self._repository.close(), self._settings.drain_timeout_s)
        except TimeoutError:
            _log.warning("models were still busy after %g s", self._settings.drain_timeout_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    @property
    def url(self) -> str:
        """Where a local client finds the server."""
        host = self._settings.host
        host = "127.0.0.1" if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}"

    def _names(self) -> dict[str, list[str]]:
        """What the path parameters of the API can be, for its documentation."""
        models, pipelines = self._repository.models(), self._repository.pipelines()
        return {
            "model": [model.name for model in models],
            "version": sorted({model.version for model in models}),
            "name": [pipeline.name for pipeline in pipelines],
        }

    def _not_ready(self) -> str:
        return "draining" if self.draining else self._repository.not_ready()

    def _sweep(self) -> None:
        self._date = formatdate(usegmt=True)
        self._now_s = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(self._now_s)
        self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)

    # -- requests ------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self._now_s

    def date(self) -> str:
        return self._date

    def handle(self, request: Request) -> None:
        self._in_flight += 1
        self._idle.clear()
        named = b"x-request-id" in request.headers
        ctx = request.ctx = Context(
            request.headers[b"x-request-id"][:128].decode("ascii", "replace")
            if named
            else f"{self._id_prefix}-{next(self._ids):x}"
        )
        if self._tracer is not None and request.path not in self._untraced:
            request.span = self._tracer.root("http", ctx, request.header(b"traceparent"))
            request.span.__enter__()
        try:
            if self._in_flight > self.limits.max_concurrency:
                self._metrics.refused.labels(reason="concurrency").inc()
                raise Overloaded(f"more than {self.limits.max_concurrency} requests are being answered")
            route, params = self._found.get((request.method, request.target)) or self._find(request)
            request.route, request.error_response = route.path, route.error_response
            if route.control:
                self._guard.check(request)
            answer = route.handler(request, params)
            if inspect.iscoroutine(answer):
                self._spawn(request, ctx, answer)
        except Exception as error:
            self.fail(request, error)

    def _find(self, request: Request) -> tuple[Route, dict[str, str]]:
        found = self._router.find(request.method.decode("latin-1"), request.path)
        if len(self._found) >= MAX_FOUND:
            self._found.clear()
        self._found[request.method, request.target] = found
        return found

    def fail(self, request: Request, error: BaseException) -> None:
        ctx = request.ctx
        assert ctx is not None
        if isinstance(error, HeadraceError):
            told = isinstance(error, LoadFailed | ConfigError)  # by the repository, which has the model's name
            if error.http_status >= 500 and error.__cause__ is not None and not told:
                _log.warning("%s", error, exc_info=error.__cause__, extra=fields(ctx))
        else:
            method = request.method.decode("latin-1")
            _log.error("%s %s failed", method, request.path, exc_info=error, extra=fields(ctx))
            error = HeadraceError(f"internal error; the log has the details under request {ctx.request_id}")
        response = request.error_response(error, ctx.request_id)
        if request.span is not None and error.http_status >= 500:
            request.span.fail(f"{type(error).__name__}: {error}")
        if isinstance(error, MethodNotAllowed):
            response.headers += f"allow: {', '.join(error.allowed)}\r\n"
        request.respond(response)

    def finished(self, request: Request, status: int) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
        took_s = time.perf_counter() - request.started_s
        key = (request.route, status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._metrics.http_s.labels(route=key[0] or "unknown", status=str(status))
        series.observe(took_s)
        if request.span is not None:
            request.span.set("http.route", request.route)
            request.span.set("http.response.status_code", status)
            request.span.__exit__(None, None, None)
            request.span = None  # it has ended: an error that comes after the client left is not its
        if self._settings.access_log:
            method, took_ms = request.method.decode("latin-1"), took_s * 1e3
            who = fields(request.ctx)
            _log.info("%s %s %s %d %.2f ms", request.peer, method, request.path, status, took_ms, extra=who)

    def _spawn(self, request: Request, ctx: Context, answer: Coroutine[Any, Any, None]) -> None:
        """Run a handler that waits; it is cancelled when the client goes away."""

        async def guarded() -> None:
            try:
                await answer
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of native code is no Exception
                self.fail(request, error)

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks[task] = ctx
        task.add_done_callback(self._tasks.pop)

        def gone(error: HeadraceError) -> None:
            if isinstance(error, Cancelled):  # a deadline is the handler's to answer
                task.cancel()

        undo = ctx.on_cancel(gone)
        task.add_done_callback(lambda _: undo())
