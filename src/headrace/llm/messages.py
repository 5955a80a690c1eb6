"""Messages of a conversation, checked: what a caller wrote flows in, plain dictionaries that templates can rely on come
out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from headrace.errors import InvalidInput

__all__ = ["ROLES", "Message", "check_messages", "check_tools"]

Message: TypeAlias = Mapping[str, Any]

MAX_VALUES = 50_000
MAX_DEPTH = 100
"""Of messages and of tools: a template walks through them in a limited number of steps, and writes them as JSON."""

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Role and content of each message as text, other keys as they are, arguments of calls parsed.

    Raises `InvalidInput` saying which message and what was expected.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidInput(f"messages: expected a list of at least one message, got {_shown(messages)}")
    return _bounded([_message(message, f"messages[{index}]") for index, message in enumerate(messages)], "messages")


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Tools in OpenAI's form. Raises `InvalidInput` saying which is not."""
    if tools is None:
        return []
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidInput(f"tools: expected a list, got {_shown(tools)}")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidInput(
                f'tools[{index}]: expected {{"type": "function", "function": {{"name": …}}}}, got {_shown(tool)}'
            )
    return _bounded([dict(tool) for tool in tools], "tools")


def _bounded(values: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    left: list[tuple[Any, int]] = [(values, 0)]
    count = 0
    while left:
        value, depth = left.pop()
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        left += [(one, depth + 1) for one in inside]
        count += len(inside)
        if count > MAX_VALUES:
            raise InvalidInput(f"{where}: expected at most {MAX_VALUES} values in all, got {len(values)} with more")
        if depth > MAX_DEPTH:
            raise InvalidInput(f"{where}: expected at most {MAX_DEPTH} levels of values in values, got more")
    return values


def _message(message: Message, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInput(f"{where}: expected an object with role and content, got {_shown(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidInput(f"{where}.role: expected one of {', '.join(ROLES)}, got {_shown(role)}")
    plain = {**message, "content": _text(message.get("content"), f"{where}.content", bool(message.get("tool_calls")))}
    if message.get("tool_calls"):
        plain["tool_calls"] = _calls(message["tool_calls"], f"{where}.tool_calls")
    return plain


def _text(content: Any, where: str, may_lack: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_lack:
        return ""
    if not isinstance(content, Sequence):
        raise InvalidInput(f"{where}: expected a text or a list of parts, got {_shown(content)}")
    parts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise InvalidInput(
                f'{where}[{index}]: expected {{"type": "text", "text": …}}, for this model reads text only; '
                f"got {_shown(kind)}"
            )
        parts.append(part["text"])
    return "".join(parts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls with their arguments as objects: OpenAI sends JSON text, templates print JSON themselves."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidInput(f"{where}: expected a list, got {_shown(calls)}")
    checked = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidInput(f"{where}[{index}].function: expected name and arguments, got {_shown(function)}")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                raise InvalidInput(f"{where}[{index}].function.arguments: expected JSON") from None
        checked.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return checked


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
