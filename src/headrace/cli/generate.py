"""`headrace generate`: a prompt in, its continuation or, with `--chat`, the model's answer out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import _language as language

if TYPE_CHECKING:
    from headrace.llm.engine import Engine
    from headrace.llm.generation import Generation
    from headrace.llm.params import Chunk, SamplingParams
    from headrace.llm.prompt import Prompt

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace generate smollm2 'The headrace leads the water' --max-tokens 40

headrace generate smollm2 --chat 'What is a headrace?' --temperature 0.7 --seed 1

headrace generate smollm2 --chat --json-schema person.json 'Invent a person.'

headrace generate ./gemma-3-270m-q4_k_m.gguf --json < prompt.txt
"""

DEFAULT_TOKENS = 256


def command(
    model: language.Model,
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="[PROMPT]",
            help="The text to continue; '-' or none reads standard input, but for a line break at its end.",
        ),
    ] = "-",
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt to the model as a question, by its chat template.")
    ] = False,
    system: language.System = "",
    repo: language.Repo = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            show_default=f"{DEFAULT_TOKENS}, or what fits",
            help="Most tokens of an answer; 0: as many as the context holds.",
        ),
    ] = None,
    temperature: language.Temperature = 0.0,
    top_k: language.TopK = 0,
    top_p: language.TopP = 1.0,
    min_p: language.MinP = 0.0,
    typical_p: language.TypicalP = 1.0,
    repetition_penalty: language.RepetitionPenalty = 1.0,
    presence_penalty: language.PresencePenalty = 0.0,
    frequency_penalty: language.FrequencyPenalty = 0.0,
    logit_bias: language.LogitBias = None,
    seed: language.Seed = None,
    stop: language.Stop = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's own end, up to --max-tokens.")
    ] = False,
    n: Annotated[int, typer.Option("-n", "--n", min=1, max=64, metavar="N", help="How many answers.")] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(min=0, max=20, metavar="N", help="With --json: log-probabilities, and of the N likeliest."),
    ] = None,
    json_schema: language.JsonSchema = "",
    regex: language.Regex = "",
    lark: language.Lark = None,
    lookup: language.Lookup = 0,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut the beginning of a prompt that is too long instead of refusing it.")
    ] = False,
    threads: language.Threads = 0,
    context: language.Context = 0,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Print the text as it is written, or at the end.")
    ] = True,
    as_json: language.Json = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Tell tokens, their speed and why it ended on stderr.")
    ] = False,
) -> None:
    """Continue a text with a language model, in this process.

    Without options the likeliest continuation is printed, and no chat template is used.
    """
    from headrace.errors import InvalidInput
    from headrace.llm.params import SamplingParams

    if system and not chat:
        raise InvalidInput("--system goes with --chat")
    if logprobs is not None and not as_json:
        raise InvalidInput("--logprobs goes with --json")
    sampling = SamplingParams(
        max_tokens=DEFAULT_TOKENS if max_tokens is None else max_tokens or None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=language.logit_bias_of(logit_bias),
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        n=n,
        logprobs=logprobs,
        grammar=language.grammar_of(json_schema, regex, lark),
        lookup=lookup,
    )
    text = _without_break(language.stdin_text()) if prompt == "-" else prompt
    asked: Any = text
    if chat:
        asked = [{"role": "system", "content": system}] if system else []
        asked = [*asked, {"role": "user", "content": text}]
    with language.open_engine(model, repo, threads=threads, context=context) as engine:
        began_s = time.perf_counter()
        with _begin(engine, asked, sampling, truncate=truncate, limited=max_tokens is not None) as generation:
            if as_json:
                answers = generation.collect()
                typer.echo(_as_json(generation, answers, model, time.perf_counter() - began_s))
            else:
                answers = _print(generation, stream=stream and n == 1, n=n)
        took_s = time.perf_counter() - began_s
    reasons = [chunk.finish_reason for chunk in answers]
    if sampling.grammar is not None and "length" in reasons:
        typer.echo("headrace: the answer was cut before it was complete (see --max-tokens and --context)", err=True)
    if stats:
        used = _completion_tokens(answers)
        speed = f"{used} tokens in {took_s:.2f} s, {used / took_s:.1f} tokens/s"
        typer.echo(f"{speed}, finish reason: {', '.join(reasons)}", err=True)


def _without_break(text: str) -> str:
    """Without one line break at the end, which `echo` and editors write and nobody means."""
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _begin(engine: Engine, asked: Prompt, sampling: SamplingParams, *, truncate: bool, limited: bool) -> Generation:
    """Ask; where the length of the answer is not `limited` by the user and too much for the context, for what fits."""
    from msgspec.structs import replace

    from headrace.errors import InvalidInput

    try:
        return engine.generate(asked, sampling, truncate=truncate)
    except InvalidInput:
        if limited:
            raise
    fits = engine.settings.max_context // 2 if truncate else None
    return engine.generate(asked, replace(sampling, max_tokens=fits), truncate=truncate)


def _print(generation: Generation, *, stream: bool, n: int) -> list[Chunk]:
    """Print the answers, under their numbers when there are several; returns the last chunk of each."""
    if stream:
        for chunk in generation:
            typer.echo(chunk.text, nl=False)
        typer.echo()
        return [chunk]
    answers = generation.collect()
    for chunk in answers:
        typer.echo(f"--- {chunk.index + 1}\n{chunk.text}" if n > 1 else chunk.text)
    return answers


def _completion_tokens(answers: list[Chunk]) -> int:
    return sum(chunk.usage.completion_tokens for chunk in answers if chunk.usage)


def _as_json(generation: Generation, answers: list[Chunk], model: str, took_s: float) -> str:
    import msgspec

    completion_tokens = _completion_tokens(answers)
    usage = answers[0].usage
    assert usage is not None
    answer = {
        "model": model,
        "answers": [
            {
                "text": chunk.text,
                "finish_reason": chunk.finish_reason,
                "tokens": chunk.tokens,
                **({"logprobs": [_logprob(one) for one in chunk.logprobs]} if chunk.logprobs else {}),
            }
            for chunk in answers
        ],
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": completion_tokens,
        "truncated_tokens": generation.truncated_tokens,
        "seconds": round(took_s, 4),
        "tokens_per_s": round(completion_tokens / took_s, 2),
    }
    return msgspec.json.encode(answer).decode()


def _logprob(one: Any) -> dict[str, Any]:
    """A token as people read it: its text beside its id."""
    top = [{"token": token, "logprob": p, "text": text.decode("utf-8", "replace")} for token, p, text in one.top]
    return {"token": one.token, "logprob": one.logprob, "text": one.text.decode("utf-8", "replace"), "top": top}
