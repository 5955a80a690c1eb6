"""From a request to the engine's `SamplingParams`: fields or `parameters` in, parameters or a named refusal out.

Defaults of OpenAI's API are its own (temperature 1), not the engine's (greedy); those of the others are the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.schema import ChatRequest, CompletionRequest, JsonObject, JsonSchema, SamplingFields
from headrace.llm.params import Grammar, SamplingParams
from headrace.serve.explain import explain

__all__ = ["chat_params", "check_stream", "completion_params", "one_answer"]

COMPLETION_TOKENS = 16
"""What `/v1/completions` generates when `max_tokens` is left out."""

MOST_TOP_LOGPROBS = 20
"""As the API has it."""

_PLAIN = (
    "top_p",
    "n",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "ignore_eos",
    "lookup",
)


def chat_params(asked: ChatRequest, forced: Grammar | None) -> SamplingParams:
    """Parameters of a chat answer. `forced` is the grammar of a tool call that must be made."""
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    if asked.max_completion_tokens is not None and asked.max_completion_tokens < 1:
        raise BadRequest("max_completion_tokens", f"expected at least 1, got {limit}")
    if asked.max_tokens not in (None, limit):
        raise BadRequest("max_tokens", f"differs from max_completion_tokens ({limit}); give one of them")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise BadRequest("top_logprobs", "needs logprobs to be true")
    if asked.top_logprobs is not None and not 0 <= asked.top_logprobs <= MOST_TOP_LOGPROBS:
        raise BadRequest(
            "top_logprobs", f"expected a whole number from 0 to {MOST_TOP_LOGPROBS}, got {asked.top_logprobs}"
        )
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    grammar = _grammar(asked)
    if forced is not None:
        if asked.grammar is not None:
            raise BadRequest("grammar", "cannot be given together with a tool that must be called")
        grammar = forced
    return _params(asked, limit, logprobs, grammar)


def completion_params(asked: CompletionRequest) -> SamplingParams:
    """Parameters of a plain completion."""
    if asked.best_of not in (None, asked.n or 1):
        raise BadRequest("best_of", f"expected the value of n ({asked.n or 1}), got {asked.best_of}")
    limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    return _params(asked, limit, asked.logprobs, asked.grammar)


def one_answer(defaults: SamplingParams, given: Mapping[str, Any]) -> tuple[SamplingParams, bool]:
    """The model's defaults with the `parameters` of a request for one answer in their place, and whether to `truncate`.

    Raises `BadRequest` naming the one that is unknown or wrong.
    """
    wanted = dict(given)
    truncate = wanted.pop("truncate", False)
    if not isinstance(truncate, bool):
        raise BadRequest("parameters.truncate", f"expected true or false, got {truncate!r}")
    if isinstance(biases := wanted.get("logit_bias"), dict):
        wanted["logit_bias"] = _biases("parameters.logit_bias", biases)
    try:
        sampling = msgspec.convert({**msgspec.to_builtins(defaults), **wanted}, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        told = explain(error, SamplingParams).replace("$.", "").replace("$", "parameters")
        raise BadRequest("parameters", told) from None
    if sampling.n != 1:
        raise BadRequest("parameters.n", f"expected 1, as this endpoint gives one answer, got {sampling.n}")
    return sampling, truncate


def check_stream(asked: SamplingFields) -> tuple[bool, bool]:
    """Whether to stream, and whether the stream ends with the usage."""
    stream = bool(asked.stream)
    if asked.stream_options is not None and not stream:
        raise BadRequest("stream_options", "needs stream to be true")
    return stream, bool(asked.stream_options and asked.stream_options.include_usage)


def _params(asked: SamplingFields, limit: int | None, logprobs: int | None, grammar: Grammar | None) -> SamplingParams:
    given: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(asked, name)) is not None}
    stop = asked.stop
    return SamplingParams(
        max_tokens=limit,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        logit_bias=_biases("logit_bias", asked.logit_bias or {}),
        logprobs=logprobs,
        grammar=grammar,
        **given,
    )


def _biases(where: str, given: Mapping[str, float]) -> dict[int, float]:
    """By token id; JSON has texts for keys."""
    wrong = next((key for key in given if not (key.isascii() and key.isdigit() and len(key) < 20)), None)
    if wrong is not None:
        raise BadRequest(where, f"expected token ids as keys, got {wrong[:80]!r}")
    return {int(key): bias for key, bias in given.items()}


def _grammar(asked: ChatRequest) -> Grammar | None:
    """Of `response_format`, or the `grammar` given."""
    form = asked.response_format
    wanted: Grammar | None = None
    if isinstance(form, JsonObject):
        wanted = Grammar("json_object")
    elif isinstance(form, JsonSchema):
        if form.json_schema.definition is None:
            raise BadRequest("response_format.json_schema.schema", "required, but missing")
        wanted = Grammar("json_schema", msgspec.json.encode(form.json_schema.definition).decode())
    if wanted is not None and asked.grammar is not None:
        raise BadRequest("grammar", "cannot be given together with response_format")
    return wanted or asked.grammar
