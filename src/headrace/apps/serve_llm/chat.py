"""`POST /v1/chat/completions`: messages in; an answer, whole or as it is written, or calls of tools out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.models import LanguageModel, LanguageModels
from headrace.apps.serve_llm.sampling import chat_params, check_stream
from headrace.apps.serve_llm.schema import ChatRequest, Tool, read
from headrace.apps.serve_llm.sse import EventStream
from headrace.apps.serve_llm.tally import Tally
from headrace.apps.serve_llm.tools import ToolReader, forced_call, offered
from headrace.apps.serve_llm.wire import DONE, ChatEvents, chat_logprobs, new_id, tool_calls, whole_answer
from headrace.llm.generation import Generation
from headrace.llm.params import Chunk
from headrace.serve.codec.message import Request
from headrace.serve.routes.body import json_response

if TYPE_CHECKING:
    from headrace.llm.engine import Engine

__all__ = ["ChatHandler"]


class ChatHandler:
    """Answers chat requests."""

    def __init__(self, models: LanguageModels, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request, params: dict[str, str]) -> None:
        asked = read(request, ChatRequest, self._max_body_bytes)
        if not asked.messages:
            raise BadRequest("messages", "expected at least one")
        model = self._models.find(asked.model)
        tools = offered(asked)
        single = asked.parallel_tool_calls is False
        sampling = chat_params(asked, forced_call(asked))
        stream, usage = check_stream(asked)
        messages = _plain(asked.messages)
        ctx = self._models.under(request, model, asked.user, asked.priority)
        truncate = bool(asked.truncate)

        def begin(engine: Engine) -> Generation:
            return engine.generate(messages, sampling, ctx=ctx, tools=_plain(tools) or None, truncate=truncate)

        async with self._models.begin(request, model, begin, long=sampling.grammar is not None) as generation:
            with generation:
                if stream:
                    await _stream(request, model, generation, tools, single=single, usage=usage)
                else:
                    await _whole(request, model, generation, tools, single=single)


async def _whole(
    request: Request, model: LanguageModel, generation: Generation, tools: Sequence[Tool], *, single: bool
) -> None:
    tally, choices = Tally(), []
    for chunk in await generation.acollect():
        tally.add(chunk)
        text, calls = chunk.text, []
        if tools:
            reader = ToolReader(tools, single=single)
            text = "".join([piece for piece in reader.feed(text, last=True) if isinstance(piece, str)])
            calls = tool_calls(reader.calls)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        message["refusal"] = None
        if calls:
            message["tool_calls"] = calls
        choices.append(
            {
                "index": chunk.index,
                "message": message,
                "logprobs": chat_logprobs(chunk.logprobs),
                "finish_reason": _reason(chunk, bool(calls)),
            }
        )
    cut = generation.truncated_tokens
    request.respond(json_response(whole_answer("chatcmpl", "chat.completion", model.name, choices, tally.usage, cut)))


async def _stream(
    request: Request,
    model: LanguageModel,
    generation: Generation,
    tools: Sequence[Tool],
    *,
    single: bool,
    usage: bool,
) -> None:
    events = ChatEvents(new_id("chatcmpl"), model.name, usage=usage, truncated_tokens=generation.truncated_tokens)
    tally = Tally()
    readers: dict[int, ToolReader] = {}
    begun: set[int] = set()
    async with EventStream(request, last=DONE) as out:
        async for chunk in generation:
            tally.add(chunk)
            pieces = []
            if chunk.index not in begun:
                begun.add(chunk.index)
                pieces.append(events.role(chunk.index))
            if tools:
                reader = readers.setdefault(chunk.index, ToolReader(tools, single=single))
                pieces += _with_tools(events, chunk, reader)
            elif chunk.text or chunk.logprobs:
                pieces.append(events.text(chunk.index, chunk.text, chat_logprobs(chunk.logprobs)))
            if chunk.finish_reason:
                called = chunk.index in readers and bool(readers[chunk.index].calls)
                pieces.append(events.finish(chunk.index, _reason(chunk, called)))
            if pieces:
                await out.send(b"".join(pieces))
        if usage:
            await out.send(events.usage(tally.usage))


def _plain(structs: Sequence[Struct]) -> list[dict[str, Any]]:
    """Messages or tools as dictionaries, without what was left out. Raises `BadRequest` for what is too deep."""
    try:
        return [_without_null(msgspec.to_builtins(struct)) for struct in structs]
    except RecursionError:
        raise BadRequest("", "the body is nested too deeply") from None


def _without_null(value: Any) -> Any:
    return {key: _without_null(one) for key, one in value.items() if one is not None} if type(value) is dict else value


def _with_tools(events: ChatEvents, chunk: Chunk, reader: ToolReader) -> list[bytes]:
    """Events of what is certain by now; log-probabilities go with the text they came with, or alone."""
    pieces, logprobs = [], chat_logprobs(chunk.logprobs)
    for piece in reader.feed(chunk.text, last=bool(chunk.finish_reason)):
        if isinstance(piece, str):
            pieces.append(events.text(chunk.index, piece, logprobs))
            logprobs = None
        else:
            pieces.append(events.call(chunk.index, piece))
    if logprobs:
        pieces.append(events.text(chunk.index, "", logprobs))
    return pieces


def _reason(chunk: Chunk, called: bool) -> str:
    return "tool_calls" if called and chunk.finish_reason == "stop" else chunk.finish_reason
