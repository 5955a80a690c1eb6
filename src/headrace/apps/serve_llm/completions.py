"""`POST /v1/completions`: prompts as text or token ids in; their continuations, whole or as they are written, out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.models import LanguageModel, LanguageModels
from headrace.apps.serve_llm.sampling import check_stream, completion_params
from headrace.apps.serve_llm.schema import CompletionRequest, read
from headrace.apps.serve_llm.sse import EventStream
from headrace.apps.serve_llm.tally import Tally
from headrace.apps.serve_llm.wire import DONE, CompletionEvents, completion_logprobs, new_id, whole_answer
from headrace.llm.generation import Generation
from headrace.llm.params import Chunk
from headrace.serve.codec.message import Request
from headrace.serve.routes.body import json_response

if TYPE_CHECKING:
    from headrace.llm.engine import Engine

__all__ = ["CompletionHandler", "Prompt", "prompts_of"]

Prompt: TypeAlias = str | list[int]

MAX_PROMPTS = 256


class CompletionHandler:
    """Answers plain completions; choice `p * n + i` is answer i to prompt p."""

    def __init__(self, models: LanguageModels, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request, params: dict[str, str]) -> None:
        asked = read(request, CompletionRequest, self._max_body_bytes)
        model = self._models.find(asked.model)
        prompts = prompts_of(asked.prompt, "prompt")
        sampling = completion_params(asked)
        stream, usage = check_stream(asked)
        if asked.echo and sampling.logprobs is not None:
            raise BadRequest("echo", "cannot be given together with logprobs: those of the prompt are not reported")
        ctx = self._models.under(request, model, asked.user, asked.priority)
        truncate = bool(asked.truncate)

        def begin(engine: Engine) -> _Answers:
            engine.check_answers(len(prompts) * sampling.n)
            with contextlib.ExitStack() as begun:  # all of them or none
                generations = [
                    begun.enter_context(engine.generate(prompt, sampling, ctx=ctx, truncate=truncate))
                    for prompt in prompts
                ]
                echoes = [_shown(engine, prompt) if asked.echo else "" for prompt in prompts]
                begun.pop_all()
            return _Answers(generations, echoes, sampling.n)

        async with self._models.begin(request, model, begin, long=sampling.grammar is not None) as answers:
            with answers:
                if stream:
                    await _stream(request, model, answers, usage=usage)
                else:
                    await _whole(request, model, answers)


class _Answers:
    """The generations of a request, and what each answer begins with."""

    def __init__(self, generations: Sequence[Generation], echoes: Sequence[str], n: int) -> None:
        self.generations = generations
        self.echoes = echoes
        self.n = n
        self.truncated_tokens = sum(generation.truncated_tokens for generation in generations)

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        for generation in self.generations:
            generation.cancel()


async def _whole(request: Request, model: LanguageModel, answers: _Answers) -> None:
    tally, choices = Tally(), []
    for number, generation in enumerate(answers.generations):
        for chunk in await generation.acollect():
            tally.add(chunk, number)
            echo = answers.echoes[number]
            choices.append(
                {
                    "index": number * answers.n + chunk.index,
                    "text": echo + chunk.text,
                    "logprobs": completion_logprobs(chunk.logprobs, len(echo)),
                    "finish_reason": chunk.finish_reason,
                }
            )
    cut = answers.truncated_tokens
    request.respond(json_response(whole_answer("cmpl", "text_completion", model.name, choices, tally.usage, cut)))


async def _stream(request: Request, model: LanguageModel, answers: _Answers, *, usage: bool) -> None:
    events = CompletionEvents(new_id("cmpl"), model.name, usage=usage, truncated_tokens=answers.truncated_tokens)
    tally = Tally()
    lengths: dict[int, int] = {}
    async with EventStream(request, last=DONE) as out:
        async for number, chunk in _together(answers.generations):
            tally.add(chunk, number)
            index, text = number * answers.n + chunk.index, chunk.text
            offset = lengths.get(index)
            if offset is None:
                echo = answers.echoes[number]
                text, offset = echo + text, len(echo)
                lengths[index] = 0
            lengths[index] += len(text)
            if text or chunk.logprobs or chunk.finish_reason:
                logprobs = completion_logprobs(chunk.logprobs, offset)
                await out.send(events.text(index, text, logprobs, chunk.finish_reason))
        if usage:
            await out.send(events.usage(tally.usage))


async def _together(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Chunk]]:
    """Chunks of all generations as they come, each with its generation's number."""
    if len(generations) == 1:
        async for chunk in generations[0]:
            yield 0, chunk
        return
    waiting = {asyncio.ensure_future(one.__anext__()): number for number, one in enumerate(generations)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = waiting.pop(task)
                with contextlib.suppress(StopAsyncIteration):
                    yield number, task.result()
                    waiting[asyncio.ensure_future(generations[number].__anext__())] = number
    finally:
        for task in waiting:
            task.cancel()


def prompts_of(value: str | list[str | int | list[int]], where: str) -> list[Prompt]:
    """One text, one list of token ids, or a list of either. Raises `BadRequest` for none, too many, or a mixture."""
    if isinstance(value, str):
        return [value]
    if not value:
        raise BadRequest(where, "expected at least one")
    if all(isinstance(item, int) for item in value):
        return [cast("list[int]", value)]
    if any(isinstance(item, int) for item in value):
        raise BadRequest(where, "expected texts, token ids, or lists of token ids, not a mixture")
    if len(value) > MAX_PROMPTS:
        raise BadRequest(where, f"expected at most {MAX_PROMPTS}, got {len(value)}")
    return cast("list[Prompt]", value)


def _shown(engine: Engine, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if engine.tokenizer is None:
        raise BadRequest("echo", "this model has no tokenizer, so token ids have no text")
    return engine.tokenizer.decode(prompt)
