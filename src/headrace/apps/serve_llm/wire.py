"""Answers in OpenAI's form: text, calls, reasons and counts in; JSON objects and server-sent events out.

An event is put together from bytes that are the same for the whole stream and the one part that is new, since this is
done for every token of every client: about 2 us, against 12 us for encoding the nested object anew.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.apps.serve_llm.schema import ToolCall
from headrace.llm.params import TokenLogprob, Usage

__all__ = [
    "DONE",
    "ChatEvents",
    "CompletionEvents",
    "Events",
    "chat_logprobs",
    "completion_logprobs",
    "event",
    "new_id",
    "tool_calls",
    "usage_body",
    "whole_answer",
]

DONE = b"data: [DONE]\n\n"

FLOOR = -9999.0
"""Stands for the logarithm of 0, which JSON cannot hold."""

_encode = msgspec.json.Encoder().encode


def new_id(kind: str) -> str:
    """An id for an answer: "chatcmpl-…"."""
    return f"{kind}-{secrets.token_hex(12)}"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % _encode(value)


class Events:
    """Events of one stream. `kind` is the "object" of each; with `usage` the last of them tells the counts."""

    def __init__(self, id: str, kind: str, model: str, *, usage: bool, truncated_tokens: int = 0) -> None:
        head: dict[str, Any] = {"id": id, "object": kind, "created": int(time.time()), "model": model}
        if truncated_tokens:
            head["truncated_tokens"] = truncated_tokens
        head["choices"] = []
        self._head = b"data: " + _encode(head)[:-2]  # up to the bracket that opens the choices
        self._tail = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def _choice(self, index: int, content: bytes, logprobs: Any, finish: str) -> bytes:
        return b'%b{"index":%d,%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            index,
            content,
            _encode(logprobs) if logprobs else b"null",
            b'"%b"' % finish.encode() if finish else b"null",
            self._tail,
        )

    def usage(self, usage: Usage) -> bytes:
        """The event of the counts, which has no choices."""
        return b'%b],"usage":%b}\n\n' % (self._head, _encode(usage_body(usage)))


class ChatEvents(Events):
    def __init__(self, id: str, model: str, *, usage: bool, truncated_tokens: int = 0) -> None:
        super().__init__(id, "chat.completion.chunk", model, usage=usage, truncated_tokens=truncated_tokens)

    def role(self, index: int) -> bytes:
        return self._choice(index, b'"delta":{"role":"assistant","content":""}', None, "")

    def text(self, index: int, text: str, logprobs: Any = None) -> bytes:
        return self._choice(index, b'"delta":{"content":%b}' % _encode(text), logprobs, "")

    def call(self, index: int, call: ToolCall) -> bytes:
        return self._choice(index, b'"delta":%b' % _encode({"tool_calls": [call]}), None, "")

    def finish(self, index: int, reason: str, logprobs: Any = None) -> bytes:
        return self._choice(index, b'"delta":{}', logprobs, reason)


class CompletionEvents(Events):
    def __init__(self, id: str, model: str, *, usage: bool, truncated_tokens: int = 0) -> None:
        super().__init__(id, "text_completion", model, usage=usage, truncated_tokens=truncated_tokens)

    def text(self, index: int, text: str, logprobs: Any = None, finish: str = "") -> bytes:
        return self._choice(index, b'"text":%b' % _encode(text), logprobs, finish)


def whole_answer(
    prefix: str, kind: str, model: str, choices: Sequence[Any], usage: Usage, truncated_tokens: int
) -> dict[str, Any]:
    """The object of an answer that is not streamed."""
    answer = {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage_body(usage),
    }
    return {**answer, "truncated_tokens": truncated_tokens} if truncated_tokens else answer


def usage_body(usage: Usage) -> dict[str, Any]:
    """Counts of tokens: the prompt's, how many of them came from the cache, the answer's."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def tool_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls as they stand in a message."""
    return [{"id": call.id, "type": "function", "function": call.function} for call in calls]


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """Log-probabilities in chat's form; None where there are none."""
    if not logprobs:
        return None
    return {
        "content": [
            {
                **_token(one.text, one.logprob),
                "top_logprobs": [_token(text, logprob) for _, logprob, text in one.top],
            }
            for one in logprobs
        ]
    }


def _token(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text.decode("utf-8", "replace"), "logprob": max(logprob, FLOOR), "bytes": list(text)}


def completion_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any] | None:
    """Log-probabilities in the form of plain completions; `offset` is where the first token's text begins."""
    if not logprobs:
        return None
    tokens = [one.text.decode("utf-8", "replace") for one in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [max(one.logprob, FLOOR) for one in logprobs],
        "top_logprobs": [
            {text.decode("utf-8", "replace"): max(logprob, FLOOR) for _, logprob, text in one.top} for one in logprobs
        ],
        "text_offset": offsets,
    }
