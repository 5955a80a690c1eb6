"""Sampled OpenTelemetry spans: the edge opens a root span per request, stages open spans below it.

The context carries the trace: `ctx.trace` is the `traceparent` of the current span, so spans find their parent with no
thread-local state and outgoing calls can send it on. Whether a request is sampled is decided once, at its root; all
spans of other requests are one shared object that does nothing.

A span writes `ctx.trace` while it is open. Parts of one request that run at the same time take a `ctx.child()` each.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.core.telemetry.traceparent import format_traceparent, parse_traceparent, sampled
from headrace.errors import ConfigError

__all__ = ["Attributes", "Span", "TraceSettings", "Tracer"]

# All tries of one export together; also the longest that a collector which is down holds up `Tracer.close`.
_EXPORT_TIMEOUT_S = 2.0

Attributes: TypeAlias = Mapping[str, str | bool | int | float]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where spans go and how many.

    Attributes:
        sample_ratio: Share of requests without a `traceparent` that are traced, 0..1.
        exporter: "none", "console" (standard error), or the http(s) URL of an OTLP collector.
        service: `service.name` of the exported spans.
    """

    sample_ratio: float = 0.0
    exporter: str = "none"
    service: str = "headrace"

    def __post_init__(self) -> None:
        if not 0 <= self.sample_ratio <= 1:
            raise ConfigError(f"trace sample_ratio: expected 0..1, got {self.sample_ratio}")
        if self.exporter not in ("none", "console") and urlsplit(self.exporter).scheme not in ("http", "https"):
            raise ConfigError(f"trace exporter: expected 'none', 'console' or an http(s) URL, got {self.exporter!r}")


class Span(Protocol):
    """An open span; a context manager. An exception that leaves it is recorded and marks it as failed."""

    def set(self, key: str, value: str | bool | int | float) -> None:
        """Set one attribute."""

    def fail(self, reason: str) -> None:
        """Mark it as failed, for a failure that does not leave it as an exception."""

    def __enter__(self) -> Span: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


class _NoSpan:
    """Stands for every span that is not recorded."""

    __slots__ = ()

    def set(self, key: str, value: str | bool | int | float) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        pass


_NO_SPAN = _NoSpan()


class _LiveSpan:
    """Starts its OpenTelemetry span on entry and makes it the parent of what `ctx` does until exit."""

    __slots__ = ("_attributes", "_ctx", "_name", "_outer", "_root", "_span", "_tracer")

    def __init__(self, tracer: Tracer, name: str, ctx: Context, attributes: Attributes | None, root: bool) -> None:
        self._tracer = tracer
        self._name = name
        self._ctx = ctx
        self._attributes = attributes
        self._root = root

    def set(self, key: str, value: str | bool | int | float) -> None:
        self._span.set_attribute(key, value)

    def fail(self, reason: str) -> None:
        self._span.set_status(self._tracer._failed(reason))

    def __enter__(self) -> Span:
        ctx = self._ctx
        self._outer = ctx.trace
        self._span = self._tracer._start(self._name, ctx, self._attributes, None, self._root)
        here = self._span.get_span_context()
        if here.is_valid:
            ctx.trace = format_traceparent(here.trace_id, here.span_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ctx.trace = self._outer
        if error is not None:
            self._span.record_exception(error)
            self.fail(f"{type(error).__name__}: {error}")
        self._span.end()


class Tracer:
    """Makes spans. Thread-safe; `close` it to flush what has not been exported.

    Args:
        settings: See `TraceSettings`. Anything but "none" needs the extra `otel`, else `MissingExtra` is raised.
        exporter: An OpenTelemetry `SpanExporter` to use instead of the one that the settings name; spans reach it as
            they end.
    """

    def __init__(self, settings: TraceSettings | None = None, *, exporter: Any = None) -> None:
        self._settings = settings or TraceSettings()
        self._random = random.Random()
        self._provider: Any = None
        if exporter is None and self._settings.exporter == "none":
            return
        sdk = require("opentelemetry.sdk.trace", "otel")
        export = require("opentelemetry.sdk.trace.export", "otel")
        resources = require("opentelemetry.sdk.resources", "otel")
        self._api = require("opentelemetry.trace", "otel")
        self._nowhere = require("opentelemetry.context", "otel").Context()
        self._provider = sdk.TracerProvider(
            sampler=require("opentelemetry.sdk.trace.sampling", "otel").ALWAYS_ON,
            resource=resources.Resource.create({"service.name": self._settings.service}),
            shutdown_on_exit=False,
        )
        if exporter is not None:
            self._provider.add_span_processor(export.SimpleSpanProcessor(exporter))
        elif self._settings.exporter == "console":
            console = export.ConsoleSpanExporter(out=sys.stderr)
            self._provider.add_span_processor(export.SimpleSpanProcessor(console))
        else:
            self._provider.add_span_processor(export.BatchSpanProcessor(_otlp(self._settings.exporter)))
        self._otel = self._provider.get_tracer("headrace")

    @property
    def enabled(self) -> bool:
        """Whether any span can be recorded."""
        return self._provider is not None

    def root(self, name: str, ctx: Context, traceparent: str = "", attributes: Attributes | None = None) -> Span:
        """The span of a whole request, of kind server; decides whether the request is traced.

        A valid `traceparent` (the client's header) decides by its sampled flag and becomes `ctx.trace`, traced or not,
        so that it can be sent on; an invalid one counts as absent. Without one, `sample_ratio` decides.
        """
        ctx.trace = parent = parse_traceparent(traceparent) if traceparent else ""
        if self._provider is None or (parent and not sampled(parent)):
            return _NO_SPAN
        if not parent and self._random.random() >= self._settings.sample_ratio:
            return _NO_SPAN
        return _LiveSpan(self, name, ctx, attributes, True)

    def span(self, name: str, ctx: Context, attributes: Attributes | None = None) -> Span:
        """A span below the current one of `ctx`; does nothing unless the request is sampled."""
        if self._provider is None or not sampled(ctx.trace):
            return _NO_SPAN
        return _LiveSpan(self, name, ctx, attributes, False)

    def record(
        self,
        name: str,
        ctx: Context,
        duration_s: float,
        attributes: Attributes | None = None,
        error: BaseException | None = None,
    ) -> None:
        """A span that ends now and began `duration_s` ago: a wait that is over (time in a queue, a GC pause).

        `error` is what ended it, if it failed.
        """
        if self._provider is None or not sampled(ctx.trace):
            return
        end_ns = time.time_ns()
        span = self._start(name, ctx, attributes, end_ns - int(duration_s * 1e9), False)
        if error is not None:
            span.record_exception(error, timestamp=end_ns)
            span.set_status(self._failed(f"{type(error).__name__}: {error}"))
        span.end(end_ns)

    def close(self) -> None:
        """Export what is pending and stop; takes about 2 s when the collector is down. Later spans are dropped."""
        if self._provider is not None:
            self._provider.shutdown()

    def _start(self, name: str, ctx: Context, attributes: Attributes | None, start_ns: int | None, root: bool) -> Any:
        api = self._api
        # Without a parent, an explicit empty context: whatever span the embedding program has open is not ours.
        above = self._nowhere
        if ctx.trace:
            _, trace_id, span_id, _ = ctx.trace.split("-")
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            parent = api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)
            above = api.set_span_in_context(api.NonRecordingSpan(parent))
        kind = api.SpanKind.SERVER if root else api.SpanKind.INTERNAL
        return self._otel.start_span(name, context=above, kind=kind, attributes=attributes, start_time=start_ns)

    def _failed(self, message: str) -> Any:
        return self._api.Status(self._api.StatusCode.ERROR, message)


def _otlp(url: str) -> Any:
    exporter = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel").OTLPSpanExporter
    endpoint = url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1/traces"
    return exporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
