"""Bodies that are wrong in some way: refused by the name of the field, with what was expected."""

from __future__ import annotations

import gzip
import json

import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
REGEX = {"kind": "regex", "text": "a"}


def _schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def changed(**fields):
    return {**CHAT, **fields}


@pytest.mark.parametrize(
    ("place", "body", "expected"),
    [
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "text"),
        ("tools[0].type", {"tools": [{"type": "retrieval"}]}, "function"),
        ("tool_choice.type", {"tool_choice": {"type": "retrieval"}}, "function"),
        ("response_format.type", {"response_format": {"type": "yaml"}}, "text, json_object or json_schema"),
    ],
)
def test_what_is_expected_is_told_for_this_place_alone(served, place, body, expected):
    error = served.post("/v1/chat/completions", {**CHAT, **body})[1]["error"]
    assert error["param"] == place
    assert error["message"].endswith(f"; expected {expected}")


def _deep(levels):
    return {
        "type": "function",
        "function": {"name": "f", "parameters": json.loads('{"a":' * levels + "1" + "}" * levels)},
    }


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "expected `object`, got `array`"),
        (b'{"model": "\xff"}', None, "UTF-8"),
        (b'{"model":"tiny","messages":' + b"[" * 100_000, "messages[0]", "expected `object`"),
        ({"model": "tiny"}, "messages", "required, but missing"),
        (changed(messages=[]), "messages", "at least one"),
        (changed(messages=[{"role": "user", "content": ""}] * 200_000), "messages", "at most 50000 values"),
        (changed(tools=[_deep(200)]), "tools", "at most 100 levels"),
        (changed(tools=[_deep(900)]), None, "nested too deeply"),
        (changed(tools=[_deep(900)], tool_choice="required"), None, "nested too deeply"),
        (changed(messages="Hello"), "messages", "expected `array`"),
        (changed(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "expected system, developer"),
        (changed(messages=[{"content": "x"}]), "messages[0].role", "required, but missing"),
        (changed(messages=[{"role": "user"}]), "messages[0].content", "required, but missing"),
        (changed(messages=[{"role": "user", "content": None}]), "messages[0].content", "got `null`"),
        (changed(messages=[{"role": "assistant"}]), "messages[0].content", "expected a text"),
        (
            changed(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0].type",
            "text",
        ),
        (changed(messages=[{"role": "user", "content": "x", "colour": 1}]), "messages[0].colour", "unknown field"),
        (changed(temperature="hot"), "temperature", "expected `float | null`, got `str`"),
        (changed(temperature=1e9), "temperature", "from 0 to 100"),
        (changed(top_p=-0.1), "top_p", "from 0 to 1"),
        (changed(max_tokens=-1), "max_tokens", "from 1"),
        (changed(max_tokens=2**70), "max_tokens", ""),
        (changed(seed=2**80), "seed", ""),
        (changed(logit_bias={"x": 1}), "logit_bias", "expected token ids as keys, got 'x'"),
        (changed(logit_bias={"-1": 1}), "logit_bias", "expected token ids as keys, got '-1'"),
        (changed(logprobs=True, top_logprobs=50), "top_logprobs", "from 0 to 20, got 50"),
        (changed(max_tokens=None, max_completion_tokens=0), "max_completion_tokens", "at least 1, got 0"),
        (changed(stop=["a"] * 99), "stop", "at most 16"),
        (changed(tool_choice="sometimes"), "tool_choice", "'sometimes'"),
        (changed(tools=[{"type": "retrieval"}]), "tools[0].type", "function"),
        (changed(tools=TOOLS, tool_choice="required", grammar=REGEX), "grammar", "must be called"),
        (changed(response_format={"type": "yaml"}), "response_format.type", "json_schema"),
        (changed(response_format=_schema(None)), "response_format.json_schema.schema", "missing"),
        (changed(response_format=_schema({"type": "strange"})), None, "grammar"),
        (changed(response_format={"type": "json_object"}, grammar=REGEX), "grammar", "response_format"),
        (changed(grammar={"kind": "regex", "text": "(("}), None, "grammar"),
        (changed(grammar={"kind": "poem"}), "grammar.kind", "'poem'"),
    ],
)  # fmt: skip
def test_wrong_bodies_are_refused_by_the_name_of_the_field(served, body, param, says):
    status, answer = served.post("/v1/chat/completions", body)
    assert status == 400, answer
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param or param is None
    assert says in error["message"]
    assert error["request_id"]


def test_what_is_without_effect_is_taken_and_nothing_else(served):
    ignored = {"store": True, "metadata": {"a": "b"}, "service_tier": "flex", "safety_identifier": "x", "user": "me"}
    status, answer = served.post("/v1/chat/completions", changed(**ignored, prompt_cache_key="k"))
    assert status == 200
    assert answer["choices"] == served.post("/v1/chat/completions", CHAT)[1]["choices"]
    assert served.post("/v1/completions", {"model": "tiny", "prompt": "a", "messages": []})[0] == 400
    assert served.post("/v1/embeddings", {"model": "tiny", "input": "a", "truncate": True})[0] == 400


def test_other_methods_and_paths_are_told_apart(served):
    assert served.request("GET", "/v1/chat/completions")[0] == 405
    assert served.post("/v1/chat", {})[0] == 404
    assert served.request("HEAD", "/v1/models")[0] == 200


def test_compressed_bodies_are_read_and_bombs_are_not(served):
    headers = {"content-encoding": "gzip"}
    assert served.post("/v1/chat/completions", gzip.compress(json.dumps(CHAT).encode()), headers)[0] == 200
    status, answer = served.post("/v1/chat/completions", gzip.compress(bytes(10 << 20)), headers)
    assert status == 413
    assert "inflates" in answer["error"]["message"]
