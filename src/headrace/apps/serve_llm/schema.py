"""What clients may ask over OpenAI's API: JSON in, checked structs out.

Strict: a field that is not listed here is refused by its name, since a parameter that is silently dropped gives an
answer the client did not ask for. `IGNORED` names the few that change nothing about the answer.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from headrace.apps.serve_llm.errors import BadRequest
from headrace.llm.params import Grammar
from headrace.serve.codec.message import Request
from headrace.serve.explain import explain
from headrace.serve.routes.body import body_of

__all__ = [
    "IGNORED",
    "AssistantMessage",
    "ChatRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "FunctionCall",
    "FunctionDefinition",
    "JsonObject",
    "JsonSchema",
    "Message",
    "NamedTool",
    "PlainText",
    "SamplingFields",
    "SystemMessage",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolMessage",
    "UserMessage",
    "read",
]

IGNORED = ("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Accepted and without effect: book-keeping of the provider they were made for."""

T = TypeVar("T")


class TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


Content: TypeAlias = str | list[TextPart]


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call that the model made in an earlier turn."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True):
    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer", forbid_unknown_fields=True):
    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    content: Content
    name: str | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True):
    """An earlier answer; the fields that can only be null are those a client library sends back as it got them."""

    content: Content | None = None
    tool_calls: list[ToolCall] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool", forbid_unknown_fields=True):
    content: Content
    tool_call_id: str
    name: str | None = None


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: FunctionDefinition


class FunctionName(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """The one function that must be called."""

    function: FunctionName


class PlainText(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class JsonObject(msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True, rename={"definition": "schema"}):
    name: str
    definition: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: NamedSchema


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What chat and plain completions have in common. The second group is ours, not OpenAI's: see
    `headrace.llm.params.SamplingParams`; `truncate` cuts a prompt that is too long instead of refusing it."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    lookup: int | None = None
    grammar: Grammar | None = None
    truncate: bool | None = None
    priority: int | None = None

    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ChatRequest(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: PlainText | JsonObject | JsonSchema | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: None = None


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/embeddings`."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


_PLACE = re.compile(r" - at `.*?\$\.?(.*?)`$")
_LEADS = ("Object contains unknown field `", "Object missing required field `")
_TAGS = (
    (re.compile(r"messages\[\d+\]\.role"), "system, developer, user, assistant or tool"),
    (re.compile(r"messages\[\d+\]\.content\[\d+\]\.type"), "text"),
    (re.compile(r"(tools\[\d+\]|tool_choice)\.type"), "function"),
    (re.compile(r"response_format\.type"), "text, json_object or json_schema"),
)
"""What tells apart the forms that a place may have."""


def read(request: Request, kind: type[T], max_bytes: int) -> T:
    """The body as `kind`. Raises `BadRequest` naming the field."""
    try:
        return msgspec.json.decode(body_of(request, max_bytes), type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(explain(error, kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest("", f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("", "the body is nested too deeply") from None


def _refusal(text: str) -> BadRequest:
    """The library's words, led by the field's name."""
    text, semicolon, hint = text.partition("; ")
    place = _PLACE.search(text)
    param, message = (place[1], text[: place.start()]) if place else ("", text)
    for lead in _LEADS:
        if message.startswith(lead):
            name = message.removeprefix(lead).rstrip("`")
            param = f"{param}.{name}" if param else name
            message = "unknown field" if "unknown" in lead else "required, but missing"
    if message.startswith("Invalid value"):
        message += "".join([f"; expected {tags}" for path, tags in _TAGS if path.fullmatch(param)])
    return BadRequest(param, message[:1].lower() + message[1:] + semicolon + hint)
