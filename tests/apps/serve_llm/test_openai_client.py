"""The unmodified `openai` package against our server: what it asks is answered, what it gets it understands."""

from __future__ import annotations

import asyncio
import json
import math

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello the world"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def ask(client, **extra):
    return client.chat.completions.create(model="tiny", messages=HELLO, **{"max_tokens": 12, "temperature": 0, **extra})


def complete(client, **extra):
    extra = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, **extra}
    return client.completions.create(model="tiny", **extra)


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "headrace")
    assert client.models.retrieve("tiny") == model


def test_a_chat_is_answered(client):
    answer = ask(client)
    (choice,) = answer.choices
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert len(choice.message.content) > 8
    assert choice.message.tool_calls is None
    assert choice.logprobs is None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert ask(client).choices[0].message.content == choice.message.content


def test_the_prompt_of_a_second_question_is_found_in_the_cache(client):
    messages = [{"role": "system", "content": "be brief " * 8}, *HELLO]
    first = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, temperature=0)
    second = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, temperature=0)
    assert first.choices[0].message.content == second.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens >= 32


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_holds_the_same_answer(client, include_usage):
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": include_usage}))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    if include_usage:
        last = chunks.pop()
        assert last.choices == []
        assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.role for chunk in chunks[1:]] == [None] * len(chunks[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_completions_take_text_and_ids_one_or_many(client, served):
    ids = served.engine.tokenizer.encode("Hello")
    single = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == single
    many = complete(client, prompt=["Hello", "the world"])
    assert [choice.index for choice in many.choices] == [0, 1]
    assert [choice.text for choice in many.choices] == [single, complete(client, prompt="the world").choices[0].text]
    assert complete(client, prompt=[ids, ids]).choices[1].text == single
    assert many.usage.completion_tokens == 24
    assert many.usage.prompt_tokens == len(ids) + len(served.engine.tokenizer.encode("the world"))


def test_completions_stream_many_prompts_and_echo_them(client):
    prompts = ["Hello", "the world", "in here"]
    whole = complete(client, prompt=prompts, n=2, echo=True, seed=3, temperature=0.8)
    texts = dict.fromkeys(range(6), "")
    reasons = dict.fromkeys(range(6))
    for chunk in complete(client, prompt=prompts, n=2, echo=True, seed=3, temperature=0.8, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert set(reasons.values()) == {"length"}
    assert [texts[2 * i].startswith(prompt) for i, prompt in enumerate(prompts)] == [True] * 3


def test_several_answers_share_a_prompt(client):
    answer = ask(client, n=4, temperature=1, seed=1)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert answer.usage.completion_tokens == 48
    streamed = [""] * 4
    for chunk in ask(client, n=4, temperature=1, seed=1, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_a_seed_repeats_the_answer_and_its_lack_does_not(client):
    texts = [ask(client, temperature=1, seed=7, max_tokens=20).choices[0].message.content for _ in range(2)]
    assert texts[0] == texts[1]
    assert len({ask(client, temperature=1, max_tokens=20).choices[0].message.content for _ in range(4)}) > 1


def test_stop_texts_end_the_answer(client):
    text = ask(client, max_tokens=20).choices[0].message.content
    answer = ask(client, max_tokens=20, stop=[text[5:7], "never"])
    assert answer.choices[0].message.content == text[: text.index(text[5:7])]
    assert answer.choices[0].finish_reason == "stop"
    assert ask(client, max_tokens=20, stop=text[5:7]).choices[0] == answer.choices[0]


def test_biases_and_penalties_have_their_effect(client, served):
    end = next(iter(served.engine.tokenizer.end_ids))
    answer = ask(client, logit_bias={str(end): 100})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
    plain = ask(client, max_tokens=40).choices[0].message.content
    varied = ask(client, max_tokens=40, frequency_penalty=2, presence_penalty=2).choices[0].message.content
    assert len(set(varied)) > len(set(plain))


def test_chat_logprobs_go_with_the_tokens(client, served):
    (choice,) = ask(client, logprobs=True, top_logprobs=3).choices
    content = choice.logprobs.content
    assert len(content) == 12
    assert "".join(one.token for one in content) == choice.message.content
    for one in content:
        assert bytes(one.bytes).decode() == one.token
        assert one.token == one.top_logprobs[0].token
        assert one.logprob == one.top_logprobs[0].logprob <= 0
        assert len(one.top_logprobs) == 3
    streamed = [
        one
        for chunk in ask(client, logprobs=True, top_logprobs=3, stream=True)
        for one in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert streamed == content
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_completion_logprobs_tell_where_each_token_begins(client):
    (choice,) = complete(client, logprobs=2).choices
    logprobs = choice.logprobs
    for token, offset, logprob, top in zip(
        logprobs.tokens, logprobs.text_offset, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert choice.text[offset:].startswith(token)
        assert math.isclose(top[token], logprob)
        assert len(top) == 2
    offsets = []
    for chunk in complete(client, logprobs=2, stream=True):
        if chunk.choices[0].logprobs:
            offsets += chunk.choices[0].logprobs.text_offset
    assert offsets == logprobs.text_offset


def test_json_can_be_demanded(client):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    answer = ask(client, max_tokens=60, response_format=form)
    person = json.loads(answer.choices[0].message.content)
    assert person["name"] in {"Ann", "Bob"}
    assert 0 <= person["age"] <= 99
    assert answer.choices[0].finish_reason == "stop"
    free = ask(client, max_tokens=200, response_format={"type": "json_object"}, temperature=1, seed=1)
    if free.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(free.choices[0].message.content), dict)
    assert free.choices[0].message.content.lstrip().startswith("{")
    assert ask(client, response_format={"type": "text"}).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
def test_a_call_can_be_demanded(client, stream, choice):
    answer = ask(client, max_tokens=80, tools=[WEATHER], tool_choice=choice, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        (call,) = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
        assert (call.index, chunks[-1].finish_reason) == (0, "tool_calls")
    else:
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        (call,) = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
    assert call.id.startswith("call_")


def test_a_call_and_its_result_can_be_sent_back(client):
    call = ask(client, max_tokens=80, tools=[WEATHER, CLOCK], tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "rain"}
    messages = [*HELLO, call, result]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER, CLOCK], max_tokens=5)
    assert answer.choices[0].message.role == "assistant"
    silent = client.chat.completions.create(
        model="tiny", messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=5, temperature=0
    )
    assert silent.usage.prompt_tokens < answer.usage.prompt_tokens


def test_embeddings_are_vectors_of_length_one(client, served):
    answer = client.embeddings.create(model="tiny", input=["Hello", "the world"])
    assert [one.index for one in answer.data] == [0, 1]
    for one in answer.data:
        assert math.isclose(sum(x * x for x in one.embedding), 1, rel_tol=1e-5)
    floats = client.embeddings.create(model="tiny", input="Hello", encoding_format="float", dimensions=64)
    assert floats.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-6)
    ids = served.engine.tokenizer.encode("Hello")
    assert client.embeddings.create(model="tiny", input=[ids]).usage.prompt_tokens == len(ids)


def test_our_own_parameters_go_through_extra_body(client):
    greedy = complete(client).choices[0].text
    extra = {"top_k": 1, "min_p": 0.1, "typical_p": 1.0, "repetition_penalty": 1.0, "priority": -2, "lookup": 4}
    assert complete(client, temperature=1, extra_body=extra).choices[0].text == greedy
    digits = complete(client, extra_body={"grammar": {"kind": "regex", "text": "[0-9]{5}"}})
    assert digits.choices[0].text.isdigit()
    assert digits.choices[0].finish_reason == "stop"
    long = complete(client, prompt="the world " * 200, extra_body={"truncate": True})
    assert long.truncated_tokens > 0
    assert long.usage.prompt_tokens + 12 == 512


@pytest.mark.parametrize(
    ("call", "error", "param"),
    [
        (lambda c: c.chat.completions.create(model="gpt-9", messages=HELLO), openai.NotFoundError, "model"),
        (lambda c: c.models.retrieve("gpt-9"), openai.NotFoundError, "model"),
        (lambda c: ask(c, temperature=-1), openai.BadRequestError, "temperature"),
        (lambda c: ask(c, max_tokens=0), openai.BadRequestError, "max_tokens"),
        (lambda c: ask(c, max_tokens=100_000), openai.BadRequestError, "max_tokens"),
        (lambda c: ask(c, n=1000), openai.BadRequestError, "n"),
        (lambda c: ask(c, functions=[]), openai.BadRequestError, "functions"),
        (lambda c: ask(c, reasoning_effort="high"), openai.BadRequestError, "reasoning_effort"),
        (lambda c: ask(c, stream_options={"include_usage": True}), openai.BadRequestError, "stream_options"),
        (lambda c: ask(c, top_logprobs=3), openai.BadRequestError, "top_logprobs"),
        (lambda c: ask(c, max_completion_tokens=5), openai.BadRequestError, "max_tokens"),
        (lambda c: ask(c, tool_choice="required"), openai.BadRequestError, "tool_choice"),
        (lambda c: ask(c, tools=[CLOCK, CLOCK]), openai.BadRequestError, "tools"),
        (lambda c: ask(c, stop=[""]), openai.BadRequestError, "stop"),
        (lambda c: ask(c, logit_bias={"999999": 1}), openai.BadRequestError, "logit_bias"),
        (lambda c: complete(c, best_of=3), openai.BadRequestError, "best_of"),
        (lambda c: complete(c, suffix="x"), openai.BadRequestError, "suffix"),
        (lambda c: complete(c, prompt=[]), openai.BadRequestError, "prompt"),
        (lambda c: complete(c, prompt=""), openai.BadRequestError, "prompt"),
        (lambda c: complete(c, prompt="the world " * 300), openai.BadRequestError, "prompt"),
        (lambda c: complete(c, prompt=[999_999]), openai.BadRequestError, "prompt"),
        (lambda c: c.embeddings.create(model="tiny", input="a", dimensions=3), openai.BadRequestError, "dimensions"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_of_the_client_s_own_classes(client, call, error, param, stream):
    if stream:
        client = client.with_options(default_headers={"x-request-id": "mine"})
    with pytest.raises(error) as caught:
        call(client)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.message
    if stream:
        assert caught.value.request_id == "mine"


def test_the_asynchronous_client_streams_many_at_once(served):
    async def one(client, i):
        chunks = await client.completions.create(
            model="tiny", prompt=f"Hello {i}", max_tokens=30, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, i) for i in range(24)))

    texts = asyncio.run(all_of_them())
    with served.client() as client:
        assert texts == [complete(client, prompt=f"Hello {i}", max_tokens=30).choices[0].text for i in range(24)]
