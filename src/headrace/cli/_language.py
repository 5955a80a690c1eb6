"""What `chat` and `generate` share: their options, sampling parameters made of them, and an engine loaded for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from headrace.cli._complete import references
from headrace.cli._model import MODEL_HELP

if TYPE_CHECKING:
    from headrace.llm.engine import Engine
    from headrace.llm.params import Grammar

__all__ = [
    "Context",
    "FrequencyPenalty",
    "Json",
    "JsonSchema",
    "Lark",
    "LogitBias",
    "Lookup",
    "MaxTokens",
    "MinP",
    "Model",
    "PresencePenalty",
    "Regex",
    "RepetitionPenalty",
    "Repo",
    "Seed",
    "Stop",
    "System",
    "Temperature",
    "Threads",
    "TopK",
    "TopP",
    "TypicalP",
    "engine_options",
    "grammar_of",
    "logit_bias_of",
    "open_engine",
    "read_text",
    "stdin_text",
]

Model: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=references, help=MODEL_HELP)]
Repo: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models.")
]
System: TypeAlias = Annotated[str, typer.Option(metavar="TEXT", help="With --chat: what the model is told first.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Threads: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0, max=1024, metavar="N", help="Threads that compute; 0: one for each usable CPU, or as headrace.toml says."
    ),
]
Context: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Most tokens of prompt and answer; 0: what the model was made for, or as headrace.toml says.",
    ),
]
MaxTokens: TypeAlias = Annotated[
    int, typer.Option(min=0, metavar="N", help="Most tokens of an answer; 0: as many as the context holds.")
]
Temperature: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="T", help="0 takes the likeliest token each time; 1 draws as the model has it.")
]
TopK: TypeAlias = Annotated[int, typer.Option(min=0, metavar="K", help="Draw from the K likeliest tokens; 0: all.")]
TopP: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, metavar="P", help="Draw from the likeliest that reach P together.")
]
MinP: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, metavar="P", help="Drop what is less likely than P times the best.")
]
TypicalP: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, metavar="P", help="Keep the tokens of typical surprise; 1: all.")
]
RepetitionPenalty: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="X", help="Above 1: less of what was there before.")
]
PresencePenalty: TypeAlias = Annotated[
    float, typer.Option(metavar="X", help="Taken from the logit of what the answer has already.")
]
FrequencyPenalty: TypeAlias = Annotated[
    float, typer.Option(metavar="X", help="The same, for each time the answer has it.")
]
Seed: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="The same seed gives the same answer. Default: a fresh one.")
]
Stop: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End the answer before this text; may be repeated.")
]
LogitBias: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="TOKEN=BIAS", help="Add to a token's logit; -100 forbids it. Repeatable.")
]
Lookup: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0, max=16, metavar="N", help="Guess up to N tokens ahead from the prompt; changes the speed alone."
    ),
]
JsonSchema: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="SCHEMA",
        help="The answer is JSON that this schema allows: a file, or text that begins with '{'; '-': any JSON object.",
    ),
]
Regex: TypeAlias = Annotated[str, typer.Option(metavar="RE", help="The answer matches this regular expression.")]
Lark: TypeAlias = Annotated[
    Path | None, typer.Option("--grammar", metavar="FILE", help="The answer is of this grammar, in Lark's notation.")
]


def open_engine(model: str, repo: Path | None, *, threads: int, context: int, **settings: Any) -> Engine:
    """Load what `model` names; on a terminal the wait is shown. What is given here (not 0) comes before the model's own
    `headrace.toml`."""
    from rich.console import Console

    from headrace.cli._model import located

    path, config = located(model, repo)
    given = {"threads": threads, "max_context": context}
    options = engine_options(config) | {name: value for name, value in given.items() if value}
    console = Console(stderr=True)
    with console.status(f"loading {path.name}") if console.is_terminal else _nothing():
        from headrace.llm.engine import Engine

        return Engine.load(path, **options, **settings)


def engine_options(config: Path | None) -> dict[str, Any]:
    """What the `[llm]` table of a `headrace.toml` states, as arguments of `Engine.load`. Raises `ConfigError` naming
    the file and the key."""
    if config is None:
        return {}
    from headrace.apps.serve_llm.config import llm_config
    from headrace.errors import ConfigError
    from headrace.serve.config import load_config

    try:
        return llm_config(load_config(config).llm).engine_options()
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if str(config) in told else f"{config}: {told}") from None


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def logit_bias_of(entries: list[str] | None) -> dict[int, float]:
    """`TOKEN=BIAS` pairs as numbers. Raises `InvalidInput`."""
    from headrace.errors import InvalidInput

    biases = {}
    for entry in entries or []:
        token, _, bias = entry.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise InvalidInput(f"--logit-bias {entry!r}: expected TOKEN=BIAS, such as 220=-100") from None
    return biases


def grammar_of(json_schema: str, regex: str, lark: Path | None) -> Grammar | None:
    """The one grammar that the options name. Raises `InvalidInput` for two of them, or a file that cannot be read."""
    from headrace.errors import InvalidInput
    from headrace.llm.params import Grammar

    if sum((bool(json_schema), bool(regex), lark is not None)) > 1:
        raise InvalidInput("--json-schema, --regex and --grammar exclude each other")
    if regex:
        return Grammar("regex", regex)
    if json_schema == "-":
        return Grammar("json_object")
    if json_schema.lstrip().startswith("{"):
        return Grammar("json_schema", json_schema)
    if json_schema:
        return Grammar("json_schema", read_text(Path(json_schema)))
    return None if lark is None else Grammar("lark", read_text(lark))


def read_text(file: Path) -> str:
    """Raises `InvalidInput` where there is no such file, or no UTF-8 in it."""
    from headrace.errors import InvalidInput

    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def stdin_text() -> str:
    """All of standard input. Raises `InvalidInput` where it is closed or no UTF-8."""
    from headrace.errors import InvalidInput

    if sys.stdin is None:  # as Python has it where it is closed
        raise InvalidInput("standard input: expected text, but it is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"standard input: expected UTF-8 text, got byte 0x{error.object[error.start]:02x}") from None
