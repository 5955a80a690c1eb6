"""Messages of a chat as templates take them: OpenAI's structs in, plain dictionaries out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.schema import AssistantMessage, Message, TextPart, Tool, ToolMessage

__all__ = ["plain_messages", "plain_tools"]

_ROLES = {"developer": "system"}


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Role and text of each; calls have their arguments parsed, as templates print them anew."""
    if not messages:
        raise BadRequest("messages", "expected at least one")
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def plain_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in the form that templates expect, without what was left out."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def _plain(message: Message, where: str) -> dict[str, Any]:
    role = str(message.__struct_config__.tag)
    plain: dict[str, Any] = {"role": _ROLES.get(role, role), "content": _text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments, f"{where}.tool_calls[{index}]"),
                    },
                }
                for index, call in enumerate(message.tool_calls)
            ]
        elif message.content is None:
            raise BadRequest(f"{where}.content", "required unless there are tool_calls")
    return plain


def _text(content: str | list[TextPart] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _arguments(text: str, where: str) -> Any:
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadRequest(f"{where}.function.arguments", "expected JSON") from None
