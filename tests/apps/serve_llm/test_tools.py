"""Calls of tools in an answer's text: found whole or in pieces, and nothing else taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.apps.serve_llm.schema import ChatRequest, FunctionDefinition, Tool, ToolCall
from headrace.apps.serve_llm.tools import ToolReader, forced_call
from headrace.llm.grammar import GrammarFactory

TOOLS = [Tool(FunctionDefinition("weather")), Tool(FunctionDefinition("clock"))]
CALL = '{"name": "weather", "arguments": {"city": "Paris", "note": "</b> {x}"}}'


def read(*pieces):
    """(text, [(name, arguments)]) of an answer that came in these pieces."""
    reader = ToolReader(TOOLS)
    out = [part for i, piece in enumerate(pieces) for part in reader.feed(piece, last=i == len(pieces) - 1)]
    calls = [part for part in out if isinstance(part, ToolCall)]
    assert calls == reader.calls
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    text = "".join(part for part in out if isinstance(part, str))
    return text, [(call.function.name, json.loads(call.function.arguments)) for call in calls]


PARIS = ("weather", {"city": "Paris", "note": "</b> {x}"})


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ("plain words", "plain words", []),
        ("", "", []),
        (f"<tool_call>\n{CALL}\n</tool_call>", "", [PARIS]),
        (f"I look.\n<tool_call>{CALL}</tool_call>", "I look.\n", [PARIS]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [PARIS, PARIS]),
        (CALL, "", [PARIS]),
        (f"  {CALL}\n", "", [PARIS]),
        (CALL.replace("arguments", "parameters"), "", [PARIS]),
        (f"<|python_tag|>{CALL}", "", [PARIS]),
        (f"[TOOL_CALLS][{CALL}, {CALL}]", "", [PARIS, PARIS]),
        ('{"name": "clock"}', "", [("clock", {})]),
        ('{"name": "clock", "arguments": "{\\"a\\": 1}"}', "", [("clock", {"a": 1})]),
        ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
        (f"[{CALL}, 3]", f"[{CALL}, 3]", []),
        ("[1, 2]", "[1, 2]", []),
        ("{not json", "{not json", []),
        ("<tool_call>never closed", "<tool_call>never closed", []),
        ("<tool_call>{bad}</tool_call> after", "<tool_call>{bad}</tool_call> after", []),
        (f"a <tool_call>{{bad}}</tool_call> b <tool_call>{CALL}</tool_call> c", None, [PARIS]),
        (f"<tool_call>{CALL}", "", [PARIS]),
        ("1 < 2 <tool", "1 < 2 <tool", []),
        ("<tool_call>" + "[" * 5000 + "</tool_call>", "<tool_call>" + "[" * 5000 + "</tool_call>", []),
    ],
)
def test_what_is_a_call_and_what_is_not(answer, text, calls):
    found = read(answer)
    assert found[1] == calls
    assert text is None or found[0] == text


parts = st.sampled_from(["<tool_call>", "</tool_call>", CALL, "words ", "\n", "{", "<tool", "[TOOL_CALLS]", "<"])


@given(st.lists(parts, max_size=6).map("".join), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_any_cutting_gives_the_same(answer, cuts):
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(answer[start : start + cut])
        start += cut
    assert read(*pieces, answer[start:]) == read(answer)


@given(st.text(max_size=60).filter(lambda text: "<tool_call>" not in text))
def test_text_without_a_call_comes_through_unchanged(text):
    assert read(*text, "") == (text, [])


def test_text_before_a_call_is_not_held_back():
    reader = ToolReader(TOOLS)
    assert "".join(reader.feed("Well, ")) + "".join(reader.feed("let me see <tool")) == "Well, let me see "
    assert list(reader.feed("_call>")) == []


@pytest.mark.parametrize("answer", [f"<tool_call>{CALL}</tool_call>" * 2, f"[{CALL}, {CALL}]"])
def test_where_one_call_is_wanted_the_others_are_dropped(answer):
    reader = ToolReader(TOOLS, single=True)
    assert list(reader.feed(answer, last=True)) == reader.calls
    assert len(reader.calls) == 1


def may_be_called(tools, name, arguments):
    """Whether the grammar of a forced call allows these arguments, spelt as models do."""
    asked = ChatRequest(model="m", messages=[], tools=tools, tool_choice="required")
    factory = GrammarFactory(lambda token: bytes([token]), 256, special_ids=[0], eos_ids=[0])
    matcher = factory.matcher(forced_call(asked))
    for token in json.dumps({"name": name, "arguments": arguments}).encode():
        if not matcher.mask()[token // 32] >> token % 32 & 1:
            return False
        matcher.accept(token)
    return matcher.finished


@pytest.mark.parametrize(("parameters", "free"), [(None, False), ({}, True), ({"type": "object"}, True)])
def test_a_tool_that_states_no_parameters_takes_none(parameters, free):
    tools = [Tool(FunctionDefinition("clock", parameters=parameters))]
    assert may_be_called(tools, "clock", {})
    assert may_be_called(tools, "clock", {"zone": "UTC"}) is free


INNER = {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"], "additionalProperties": False}


def _object(required, **properties):
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "arguments", "wrong"),
    [
        (_object("x", x={"$ref": "#/$defs/In"}) | {"$defs": {"In": INNER}}, {"x": {"c": "a"}}, {"x": {"c": 1}}),
        (_object("x", x=INNER, y={"$ref": "#/properties/x"}), {"x": {"c": "a"}, "y": {"c": "b"}}, {"x": {"c": 1}}),
        (_object("x", x={"anyOf": [{"type": "null"}, {"$ref": "#"}]}), {"x": {"x": {"x": None}}}, {"x": {"x": 1}}),
        ({"$ref": "#/definitions/In", "definitions": {"In": INNER}}, {"c": "a"}, {"c": 1}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/A"}
            | {"definitions": {"A": _object("x", x={"$ref": "#/definitions/In"}), "In": INNER}},
            {"x": {"c": "a"}},
            {"x": {"c": 1}},
        ),
        (
            _object("x", x={"$ref": "#/$defs/In"}) | {"$defs": {"In": INNER}, "$id": "https://example.com/tool"},
            {"x": {"c": "a"}},
            {"x": {"c": 1}},
        ),
        (
            _object("const", const={"$ref": "#/$defs/enum"}) | {"$defs": {"enum": INNER}},
            {"const": {"c": "a"}},
            {"const": {"c": 1}},
        ),
        (_object("$ref", **{"$ref": {"const": {"$ref": "#/a"}}}), {"$ref": {"$ref": "#/a"}}, {"$ref": {"$ref": "#/"}}),
        (_object("c", c={"enum": [{"$ref": "#"}]}), {"c": {"$ref": "#"}}, {"c": {}}),
    ],
)
def test_parameters_may_refer_to_their_own_parts(parameters, arguments, wrong):
    tool, other = Tool(FunctionDefinition("f", parameters=parameters)), Tool(FunctionDefinition("g"))
    before = json.dumps(parameters)
    for tools in ([tool], [tool, other], [other, tool]):
        assert may_be_called(tools, "f", arguments)
        assert not may_be_called(tools, "f", wrong)
    assert json.dumps(parameters) == before


def test_tools_with_parts_of_the_same_name_keep_their_own():
    tools = [
        Tool(FunctionDefinition(name, parameters=_object("x", x={"$ref": "#/$defs/In"}) | {"$defs": {"In": inner}}))
        for name, inner in (("f", INNER), ("g", {"type": "null"}))
    ]
    for name, value, other in (("f", {"c": "a"}, None), ("g", None, {"c": "a"})):
        assert may_be_called(tools, name, {"x": value})
        assert not may_be_called(tools, name, {"x": other})
