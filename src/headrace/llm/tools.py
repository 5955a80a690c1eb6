"""Tools for templates that know none: messages and tools flow in, messages that tell of the tools come out.

The form is that of Hermes and Qwen, which most small models have seen: `<tools>`, `<tool_call>`, `<tool_response>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["describe_tools"]

_OFFER = """\
You may call functions to answer. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as JSON between these tags, and nothing else:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def describe_tools(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation with tools, calls and their results written out as text."""
    told = [_written(message) for message in messages]
    if not tools:
        return told
    offer = _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if told[0]["role"] in ("system", "developer"):
        return [{**told[0], "content": f"{told[0]['content']}\n\n{offer}"}, *told[1:]]
    return [{"role": "system", "content": offer}, *told]


def _written(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [
        json.dumps({"name": call["function"]["name"], "arguments": call["function"]["arguments"]}, ensure_ascii=False)
        for call in message["tool_calls"]
    ]
    written = [message["content"], *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": "\n".join(part for part in written if part)}
