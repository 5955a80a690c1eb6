"""What a traced server tells a collector: one span a request, those below it, and which of them failed."""

import asyncio
import http.client
import json

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.core.telemetry import Registry, Tracer, TraceSettings
from headrace.serve.metrics import ServeMetrics
from headrace.serve.repository import Repository
from headrace.serve.server import Server, ServerSettings

STAGES = """
def parse(payload, ctx):
    payload.metadata["number"] = 1 / int(payload.text)
    return payload

def tell(payload, ctx):
    payload.result = payload.metadata["number"]
    return payload
"""


@pytest.fixture
def memory():
    return InMemorySpanExporter()


@pytest.fixture
async def ask(disk, memory):
    """`await ask(method, path, body)` gives the status and, sorted out by name, the spans of that request."""
    disk.python("broken", "def model(tensors):\n    raise RuntimeError('its own fault')\n")
    disk.config("p", 'consumes = "text"\n[[stage]]\nop = "stages:parse"\n[[stage]]\nop = "stages:tell"\n')
    (disk.root / "p" / "stages.py").write_text(STAGES)
    tracer = Tracer(TraceSettings(sample_ratio=1.0), exporter=memory)
    metrics = ServeMetrics(Registry())
    repository = Repository(disk.root, metrics, tracer=tracer)
    server = Server(repository, metrics, ServerSettings(port=0), tracer)
    await server.start()
    await repository.start()

    def fetch(method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    async def once(method, path, body=None):
        memory.clear()
        status = await asyncio.to_thread(fetch, method, path, body)
        return status, {span.name: span for span in memory.get_finished_spans()}

    yield once
    await server.stop()
    tracer.close()


async def test_a_good_request_has_spans_without_a_fault(ask):
    status, spans = await ask("POST", "/v1/pipelines/p", b"4")
    assert (status, set(spans)) == (200, {"http", "stages:parse", "stages:tell"})
    assert {span.status.status_code for span in spans.values()} == {StatusCode.UNSET}
    assert dict(spans["stages:tell"].attributes) == {"pipeline": "p"}
    assert spans["http"].kind is SpanKind.SERVER
    assert spans["stages:parse"].kind is SpanKind.INTERNAL
    assert spans["stages:parse"].parent.span_id == spans["http"].context.span_id


async def test_a_stage_that_raises_marks_itself_and_the_request(ask):
    status, spans = await ask("POST", "/v1/pipelines/p", b"0")
    assert (status, set(spans)) == (500, {"http", "stages:parse"})
    for span in spans.values():
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "StageFailed: stage 'stages:parse': ZeroDivisionError: division by zero"
    assert spans["http"].attributes["http.response.status_code"] == 500


async def test_a_run_that_fails_marks_itself_and_the_request(ask):
    x = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    status, spans = await ask("POST", "/v2/models/broken/infer", json.dumps({"inputs": [x]}).encode())
    assert (status, set(spans)) == (500, {"http", "run"})
    for span in spans.values():
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "StageFailed: stage 'broken': RuntimeError: its own fault"


async def test_what_the_client_did_wrong_is_no_fault_of_the_server(ask):
    status, spans = await ask("POST", "/v1/pipelines/nope", b"4")
    assert (status, spans["http"].status.status_code) == (404, StatusCode.UNSET)


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"])
async def test_probes_are_not_traced(ask, path):
    assert await ask("GET", path) == (200, {})
