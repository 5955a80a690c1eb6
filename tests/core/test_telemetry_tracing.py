import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as otel
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.core.context import Context
from headrace.core.telemetry import Tracer, TraceSettings, parse_traceparent
from headrace.core.telemetry.tracing import _NO_SPAN
from headrace.errors import ConfigError

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


@pytest.fixture
def memory():
    return InMemorySpanExporter()


@pytest.fixture
def always(memory):
    tracer = Tracer(TraceSettings(sample_ratio=1.0), exporter=memory)
    yield tracer
    tracer.close()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (SAMPLED, SAMPLED),
        (f"  {SAMPLED}\t", SAMPLED),
        (UNSAMPLED, UNSAMPLED),
        (f"00-{TRACE}-{SPAN}-03", SAMPLED),
        (f"00-{TRACE}-{SPAN}-fe", UNSAMPLED),
        (f"cc-{TRACE}-{SPAN}-01", SAMPLED),
        (f"cc-{TRACE}-{SPAN}-01-more", SAMPLED),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (SAMPLED.upper(), ""),
        (SAMPLED[:-1], ""),
        (f"00-{TRACE}{SPAN}-01", ""),
        ("", ""),
    ],
)
def test_traceparent(header, expected):
    assert parse_traceparent(header) == expected


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_any_header_is_taken_or_ignored_and_never_an_error(header):
    parsed = parse_traceparent(header)
    assert parsed in ("", parse_traceparent(parsed))
    ctx = Context()
    with Tracer().root("request", ctx, header):
        assert ctx.trace == parsed


def test_spans_nest_through_the_context(always, memory):
    ctx = Context()
    with always.root("request", ctx) as root:
        root.set("model", "m")
        at_root = ctx.trace
        with always.span("stage.decode", ctx, {"rows": 3}):
            assert ctx.trace != at_root
        assert ctx.trace == at_root
        always.record("queue", ctx, 0.5)
    assert ctx.trace == ""
    decode, queue, request = memory.get_finished_spans()
    assert (request.name, request.parent, dict(request.attributes)) == ("request", None, {"model": "m"})
    assert (decode.name, dict(decode.attributes)) == ("stage.decode", {"rows": 3})
    for below in (decode, queue):
        assert below.parent.span_id == request.context.span_id
        assert below.context.trace_id == request.context.trace_id
    assert at_root == f"00-{request.context.trace_id:032x}-{request.context.span_id:016x}-01"
    assert queue.end_time - queue.start_time == 500_000_000


def test_a_sampled_parent_is_honoured_whatever_the_ratio(memory):
    tracer, ctx = Tracer(TraceSettings(sample_ratio=0.0), exporter=memory), Context()
    with tracer.root("request", ctx, SAMPLED), tracer.span("stage", ctx):
        assert ctx.trace.startswith(f"00-{TRACE}-")
    assert ctx.trace == SAMPLED
    stage, request = memory.get_finished_spans()
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == SPAN
    assert stage.parent.span_id == request.context.span_id


def test_an_unsampled_parent_is_passed_on_and_not_recorded(always, memory):
    ctx = Context()
    with always.root("request", ctx, UNSAMPLED) as root, always.span("stage", ctx) as span:
        assert root is span is _NO_SPAN
        assert ctx.trace == UNSAMPLED
        root.set("ignored", 1)
        always.record("queue", ctx, 1.0)
    assert memory.get_finished_spans() == ()


def test_the_ratio_decides_once_per_request(memory):
    tracer = Tracer(TraceSettings(sample_ratio=0.3), exporter=memory)
    for _ in range(400):
        ctx = Context()
        with tracer.root("request", ctx), tracer.span("stage", ctx):
            pass
    names = [span.name for span in memory.get_finished_spans()]
    assert names.count("request") == names.count("stage")
    assert 60 < names.count("request") < 190  # 120 expected; 6.5 standard deviations to either side
    tracer.close()


def test_off_means_one_shared_span_and_no_sdk(monkeypatch):
    def refuse(module, extra):
        raise AssertionError(f"{module} was imported")

    monkeypatch.setattr("headrace.core.telemetry.tracing.require", refuse)
    tracer, ctx = Tracer(), Context()
    assert not tracer.enabled
    assert tracer.root("request", ctx, SAMPLED) is tracer.span("stage", ctx) is _NO_SPAN
    assert ctx.trace == SAMPLED
    tracer.record("queue", ctx, 1.0)
    tracer.close()


def test_an_exception_marks_the_span_and_goes_on(always, memory):
    ctx = Context()
    with pytest.raises(ValueError, match="broken"), always.root("request", ctx):
        raise ValueError("broken")
    (span,) = memory.get_finished_spans()
    assert span.status.status_code is otel.StatusCode.ERROR
    assert "broken" in span.status.description
    assert span.events[0].name == "exception"
    assert ctx.trace == ""


def test_failures_that_are_told_mark_the_span_and_others_stay_unmarked(always, memory):
    ctx = Context()
    with always.root("request", ctx) as root:
        always.record("good", ctx, 0.1)
        always.record("bad", ctx, 0.1, {"rows": 3}, ValueError("broken"))
        root.fail("503")
    good, bad, request = memory.get_finished_spans()
    assert good.status.status_code is otel.StatusCode.UNSET
    assert (good.events, dict(good.attributes)) == ((), {})
    assert (bad.status.status_code, bad.status.description) == (otel.StatusCode.ERROR, "ValueError: broken")
    assert (bad.events[0].name, dict(bad.attributes)) == ("exception", {"rows": 3})
    assert (request.status.status_code, request.status.description) == (otel.StatusCode.ERROR, "503")
    assert (request.kind, bad.kind) == (otel.SpanKind.SERVER, otel.SpanKind.INTERNAL)
    with Tracer().root("request", ctx) as nothing:
        nothing.fail("ignored")


def test_children_of_a_context_trace_side_by_side(always, memory):
    ctx = Context()
    with always.root("request", ctx):
        left, right = ctx.child(), ctx.child()
        with always.span("left", left), always.span("right", right):
            pass
        assert left.trace == right.trace == ctx.trace
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert spans["left"].parent.span_id == spans["right"].parent.span_id == spans["request"].context.span_id


def test_a_span_of_the_embedding_program_is_not_taken_for_a_parent(always, memory):
    foreign = otel.NonRecordingSpan(otel.SpanContext(7, 7, is_remote=False))
    with otel.use_span(foreign), always.root("request", Context()):
        pass
    (span,) = memory.get_finished_spans()
    assert span.parent is None


@pytest.mark.parametrize(
    "settings", [{"sample_ratio": 1.5}, {"sample_ratio": -0.1}, {"exporter": "kafka"}, {"exporter": "host:4318"}]
)
def test_wrong_settings_name_the_key(settings):
    (key,) = settings
    with pytest.raises(ConfigError, match=key):
        TraceSettings(**settings)


def test_console_exporter_writes_to_standard_error(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    tracer = Tracer(TraceSettings(sample_ratio=1.0, exporter="console", service="here"))
    with tracer.root("request", Context()):
        pass
    tracer.close()
    span = json.loads(out.getvalue())
    assert span["name"] == "request"
    assert span["resource"]["attributes"]["service.name"] == "here"


def test_otlp_exporter_reaches_a_collector():
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            tracer = Tracer(TraceSettings(sample_ratio=1.0, exporter=url))
            with tracer.root("request", Context()):
                pass
            tracer.close()
        finally:
            server.shutdown()
            thread.join()
    ((path, request),) = received
    assert path == "/v1/traces"
    assert request.resource_spans[0].scope_spans[0].spans[0].name == "request"
