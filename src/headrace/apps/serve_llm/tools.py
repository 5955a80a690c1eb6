"""Calls of tools: the tools of a request in, a grammar that forces a call out; answer text in, text and calls out.

Two ways of writing a call are understood: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` among other text
(Hermes, Qwen), and as the whole answer a JSON object or list with `name` and `arguments` or `parameters` (Llama 3,
Mistral, and whatever a grammar forces). Text that only looks like a call stays text.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.schema import ChatRequest, FunctionCall, NamedTool, Tool, ToolCall
from headrace.llm.params import Grammar

__all__ = ["ToolReader", "forced_call", "offered"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LEADS = ("[TOOL_CALLS]", "<|python_tag|>")
"""What some models write before the JSON; dropped."""

WHITESPACE = " \t\r\n"


def offered(asked: ChatRequest) -> list[Tool]:
    """The tools that the model is told of. Raises `BadRequest` for a choice that cannot be made."""
    tools = asked.tools or []
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise BadRequest("tools", f"names must differ, got {names}")
    choice = asked.tool_choice
    if not tools and choice not in (None, "none", "auto"):
        raise BadRequest("tool_choice", "needs tools")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise BadRequest("tool_choice.function.name", f"expected one of {names}, got {choice.function.name!r}")
    return [] if choice == "none" else tools


def forced_call(asked: ChatRequest) -> Grammar | None:
    """The grammar of the one call that `tool_choice` demands, or None where none is demanded."""
    choice, tools = asked.tool_choice, asked.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    elif choice != "required":
        return None
    calls = []
    for index, tool in enumerate(tools):
        place = "#/properties/arguments" if len(tools) == 1 else f"#/anyOf/{index}/properties/arguments"
        parameters = _NONE if tool.function.parameters is None else tool.function.parameters or _ANY
        arguments = _moved(parameters, place)
        call = {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        calls.append(call)
    schema: dict[str, Any] = {"x-guidance": _SPACING, **(calls[0] if len(calls) == 1 else {"anyOf": calls})}
    return Grammar("lark", f"start: %json {msgspec.json.encode(schema).decode()}")


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """The schema as it must be where it is a part of another: what refers to its root (`#…`) refers to its place."""
    moved: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    parts: list[Any] = [moved]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict) and "$id" not in part:  # with an `$id`, `#` is that part
            ref = part.get("$ref")
            if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
                part["$ref"] = place + ref[1:]
            for key, value in part.items():
                if key in _NAMED and isinstance(value, dict):
                    parts += value.values()
                elif key not in ("const", "enum"):
                    parts.append(value)
    return moved


_ANY: dict[str, Any] = {"type": "object"}
_NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""A function that states no parameters takes none."""
_NAMED = ("$defs", "definitions", "patternProperties", "properties")
"""What holds schemas by names."""
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As models write calls by themselves; white space at will tempts small ones to go on with it for ever."""


class ToolReader:
    """Parts one answer, as it comes, into text and calls. Holds back what may still become a call. White space with
    nothing else before a call, and after one, belongs to it.

    Attributes:
        calls: Calls found so far; no more than one where only a `single` one is wanted.
    """

    def __init__(self, tools: Sequence[Tool], *, single: bool = False) -> None:
        self.calls: list[ToolCall] = []
        self._single = single
        self._names = {tool.function.name for tool in tools}
        self._held = ""
        self._began = False
        self._after_call = False
        self._spoke = False  # text since the last call

    def feed(self, text: str, *, last: bool = False) -> Iterator[str | ToolCall]:
        """Pieces of text and calls that are certain now; at the `last` feed everything is."""
        self._held += text
        while self._held:
            if not self._began:
                bare = self._held.lstrip(WHITESPACE)
                if not last and (not bare or bare[0] in "{[" or any(lead.startswith(bare) for lead in LEADS)):
                    return
                if not last and any(bare.startswith(lead) for lead in LEADS):
                    return
                if last and (calls := self._whole(bare)):
                    self._held = ""
                    yield from self._wanted(calls)
                    return
                self._began = True
            if self._after_call:
                self._held = self._held.lstrip(WHITESPACE)
                self._after_call = not self._held
            before, tag, rest = self._held.partition(OPEN)
            inside, end, after = rest.partition(CLOSE)
            if not tag or not (end or last):  # what is certain goes out; white space may still be a call's
                certain = before if tag or last else before[: len(before) - _overlap(before, OPEN)]
                if last or self._spoke or certain.strip(WHITESPACE):
                    self._held = self._held[len(certain) :]
                    self._spoke = bool(certain) or self._spoke
                    if certain:
                        yield certain
                return
            calls = self._parse(inside)
            self._held, self._after_call = after, bool(calls)
            if not calls:
                yield before + tag + inside + end
            elif self._spoke or before.strip(WHITESPACE):
                yield before
            self._spoke = not calls
            yield from self._wanted(calls)

    def _whole(self, text: str) -> list[ToolCall]:
        for lead in LEADS:
            text = text.removeprefix(lead)
        return self._parse(text)

    def _parse(self, text: str) -> list[ToolCall]:
        """The calls that `text` is, if it is nothing else; none otherwise."""
        try:
            value = msgspec.json.decode(text.strip(WHITESPACE))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return []
        found = [self._call(item) for item in (value if isinstance(value, list) else [value])]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(found) else []

    def _wanted(self, calls: Sequence[ToolCall]) -> Iterator[ToolCall]:
        """Those that count, numbered."""
        for call in calls:
            if not (self._single and self.calls):
                call.index = len(self.calls)
                self.calls.append(call)
                yield call

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        return ToolCall(f"call_{secrets.token_hex(12)}", FunctionCall(value["name"], arguments))


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that `marker` begins with."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)
