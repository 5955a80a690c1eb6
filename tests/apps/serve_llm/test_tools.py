"""Calls of tools in an answer's text: found whole or in pieces, and nothing else taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.apps.serve_llm.schema import FunctionDefinition, Tool, ToolCall
from headrace.apps.serve_llm.tools import ToolReader

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
