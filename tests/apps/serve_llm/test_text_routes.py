"""Text routes beside OpenAI's: /generate, the generate extension, infer; keys, tenants, metrics and traces."""

from __future__ import annotations

import json

import numpy as np
import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.core.telemetry import Tracer, TraceSettings

PARAMETERS = {"max_tokens": 10}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
ROUTES = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "Hello", "max_tokens": 2}),
    ("POST", "/v1/embeddings", {"model": "tiny", "input": "Hello"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/tiny", None),
    ("POST", "/generate", {"text": "Hello", "model": "tiny"}),
    ("POST", "/generate", {"text": "hello", "model": "shout"}),
    ("POST", "/v2/models/tiny/generate", {"text_input": "Hello"}),
    ("POST", "/v2/models/tiny/generate_stream", {"text_input": "Hello"}),
    ("POST", "/v1/pipelines/shout", b"hello"),
    (
        "POST",
        "/v2/models/tiny/infer",
        {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hello"]}]},
    ),
]


@pytest.fixture
def expected(client):
    answer = client.completions.create(model="tiny", prompt="Hello", max_tokens=10, temperature=0)
    return answer.choices[0].text


def events(raw):
    parts = raw.decode().split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_generate_continues_a_text(served, expected):
    status, answer = served.post("/generate", {"text": "Hello", "model": "tiny", "parameters": PARAMETERS})
    assert status == 200
    assert (answer["model"], answer["text"], answer["finish_reason"]) == ("tiny", expected, "length")
    assert answer["usage"]["completion_tokens"] == 10


def test_a_model_may_be_left_out_where_there_is_one(served, start):
    status, refused = served.post("/generate", {"text": "Hello"})
    assert status == 400
    assert refused["error"] == "model: must name a language model or a text pipeline; there are: tiny, shout"
    server = start()
    assert server.post("/v2/repository/models/shout/unload", {})[0] == 200
    assert server.post("/generate", {"text": "Hello", "parameters": PARAMETERS})[1]["model"] == "tiny"
    assert server.post("/v2/repository/models/shout/load", {})[0] == 200
    assert server.post("/v2/repository/models/tiny/unload", {})[0] == 200
    assert server.post("/generate", {"text": "hello"}) == (200, {"model": "shout", "text": "HELLO"})


def test_pipelines_keep_their_names(served):
    assert served.post("/generate", {"text": "hello", "model": "shout"}) == (200, {"model": "shout", "text": "HELLO"})
    status, answer = served.post("/v2/models/shout/generate", {"text_input": "hello"})
    assert (status, answer["text_output"]) == (200, "HELLO")
    assert served.post("/generate", {"text": "hello", "model": "none"})[0] == 404
    assert served.post("/v2/models/shout/generate_stream", {"text_input": "hello"})[0] == 404


def test_the_generate_extension_answers_whole_or_in_events(served, expected):
    asked = {"text_input": "Hello", "parameters": PARAMETERS, "id": "7"}
    status, answer = served.post("/v2/models/tiny/generate", asked)
    assert status == 200
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "tiny", "1")
    assert answer["text_output"] == expected
    status, headers, raw = served.request("POST", "/v2/models/tiny/generate_stream", asked)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    parts = events(raw)
    assert "".join(part["text_output"] for part in parts) == expected
    assert {part["id"] for part in parts} == {"7"}
    assert [part.get("finish_reason") for part in parts] == [None] * (len(parts) - 1) + ["length"]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"top_kk": 1}, "`top_kk`; did you mean `top_k`?"),
        ({"temperature": "hot"}, "float"),
        ({"temperature": -1}, "temperature: expected a number from 0"),
        ({"n": 2}, "parameters.n"),
        ({"stream": True}, "generate_stream"),
        ({"priority": "high"}, "priority"),
        ({"stop": "text"}, "array"),
    ],
)
def test_wrong_parameters_are_named(served, parameters, says):
    status, answer = served.post("/v2/models/tiny/generate", {"text_input": "Hello", "parameters": parameters})
    assert status == 400
    assert says in answer["error"]


def test_infer_keeps_the_shape_and_uses_the_model_s_own_parameters(start):
    import tritonclient.http as triton

    server = start('sampling = { max_tokens = 10, stop = ["never"] }\n')
    texts = np.array([["Hello", "the world"], ["in", "é"]], object)
    tensor = triton.InferInput("text_input", texts.shape, "BYTES")
    tensor.set_data_from_numpy(texts)
    client = triton.InferenceServerClient(f"127.0.0.1:{server.server.port}")
    answer = client.infer("tiny", [tensor]).as_numpy("text_output")
    assert client.get_model_metadata("tiny")["platform"] == "llm"
    client.close()
    assert answer.shape == (2, 2)
    for text, continued in zip(texts.ravel(), answer.ravel(), strict=True):
        one = server.post("/v1/completions", {"model": "tiny", "prompt": text, "max_tokens": 10, "temperature": 0})[1]
        assert continued.decode() == one["choices"][0]["text"]


def test_infer_takes_the_parameters_of_generate(served):
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hello"]}

    def infer(**parameters):
        return served.post("/v2/models/tiny/infer", {"inputs": [tensor], "parameters": parameters})

    drawn = {"max_tokens": 9, "temperature": 1.0, "seed": 3}
    status, answer = infer(**drawn, timeout=20_000_000, binary_data_output=False)
    assert status == 200, answer
    body = {"text_input": "Hello", "parameters": drawn}
    assert answer["outputs"][0]["data"] == [served.post("/v2/models/tiny/generate", body)[1]["text_output"]]
    for wrong, says in [
        ({"max_tokenz": 3}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"truncate": 1}, "parameters.truncate"),
        ({"priority": 1}, "parameters.priority"),
        ({"stream": True}, "stream"),
    ]:
        status, answer = infer(**wrong)
        assert status == 400, wrong
        assert says in answer["error"]


def test_infer_says_what_is_wrong(served):
    def infer(**tensor):
        tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hello"], **tensor}
        return served.post("/v2/models/tiny/infer", {"inputs": [tensor]})

    assert infer(name="text")[0] == 400
    assert infer(datatype="INT32", data=[1])[0] == 400
    status, answer = infer(data=["the world " * 300])
    assert status == 400
    assert "tokens" in answer["error"]
    assert infer(data=[""])[0] == 400


def test_a_key_guards_all_that_runs_a_model(start):
    server = start("sampling = { max_tokens = 2 }\n", api_key="sesame")
    for method, path, body in ROUTES:
        assert server.request(method, path, body)[0] == 401, path
        assert server.request(method, path, body, {"authorization": "Bearer wrong"})[0] == 401, path
        status, _, answer = server.request(method, path, body, {"authorization": "Bearer sesame"})
        assert status == 200, (path, answer)
    for path in ("/healthz", "/readyz", "/metrics", "/v2", "/docs"):
        assert server.request("GET", path)[0] == 200
    with server.client(api_key="sesame") as client:
        assert client.models.list().data[0].id == "tiny"
    with server.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_without_a_key_all_is_open(served):
    for method, path, body in ROUTES:
        assert served.request(method, path, body)[0] == 200, path


def test_priority_and_tenant_reach_the_engine(served, monkeypatch):
    seen = []
    generate = served.engine.generate

    def spy(*args, ctx, **options):
        seen.append((ctx.priority, ctx.tenant, ctx.request_id))
        return generate(*args, ctx=ctx, **options)

    monkeypatch.setattr(served.engine, "generate", spy)
    served.post("/v1/chat/completions", {**CHAT, "priority": 0, "user": "ann"}, {"x-request-id": "r1"})
    served.post("/v1/chat/completions", {**CHAT, "user": "ann"}, {"x-tenant-id": "acme"})
    served.post("/v2/models/tiny/generate", {"text_input": "Hello", "parameters": {"priority": -2, "max_tokens": 1}})
    status, refused = served.post("/v1/chat/completions", {**CHAT, "priority": 3})[:2]
    assert status == 400
    assert "none above 0" in str(refused)
    assert seen[0] == (0, "ann", "r1")
    assert [(priority, tenant) for priority, tenant, _ in seen[1:]] == [(0, "acme"), (-2, "")]


def test_the_engine_s_metrics_are_on_the_server(served):
    before = served.gauge("headrace_llm_generated_tokens_total")
    assert served.post("/v1/chat/completions", CHAT)[0] == 200
    assert served.gauge("headrace_llm_generated_tokens_total") == before + 8
    text = served.request("GET", "/metrics")[2].decode()
    for name in ("ttft_seconds", "itl_seconds", "queue_seconds", "kv_pages", "kv_held_pages", "preemptions_total"):
        assert f"headrace_llm_{name}" in text
    assert 'route="/v1/chat/completions",status="200"' in text or 'status="200",route="/v1/chat/completions"' in text


def test_a_traced_request_has_its_spans(start):
    memory = InMemorySpanExporter()
    server = start(tracer=Tracer(TraceSettings(sample_ratio=1.0), exporter=memory))
    server.post("/v1/chat/completions", CHAT)
    spans = {span.name: span for span in memory.get_finished_spans()}
    root = spans["http"]
    assert root.attributes["http.route"] == "/v1/chat/completions"
    for name in ("prefill", "decode"):
        assert spans[name].parent.span_id == root.context.span_id


def test_the_api_is_described(served):
    document = served.request("GET", "/openapi.json")[2]
    for method, path, _ in ROUTES:
        pattern = path.replace("/tiny", "/{model}").replace("/shout", "/{name}")
        assert method.lower() in document["paths"][pattern], pattern
    error = document["paths"]["/v1/chat/completions"]["post"]["responses"]["400"]["content"]["application/json"]
    assert error["schema"]["properties"]["error"]["required"] == ["message", "type", "param", "code"]
