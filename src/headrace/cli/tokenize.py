"""`headrace tokenize`: a text in, the tokens a model makes of it out; or token ids in and their text out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import _language as language

if TYPE_CHECKING:
    from headrace.llm.tokenizer import Tokenizer

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace tokenize smollm2 'The headrace leads the water'

headrace tokenize smollm2 --chat 'What is a headrace?'

headrace tokenize ./gemma-3-270m-q4_k_m.gguf --json < page.txt

headrace tokenize smollm2 --decode '504 1223 9590'
"""


def command(
    model: language.Model,
    text: Annotated[
        str,
        typer.Argument(
            metavar="[TEXT]",
            help="A text, or with --decode token ids; '-' or none reads stdin as it is.",
        ),
    ] = "-",
    chat: Annotated[
        bool, typer.Option("--chat", help="Show the whole prompt: the text as a question, by the chat template.")
    ] = False,
    system: language.System = "",
    special: Annotated[
        bool, typer.Option("--special", help="Take texts such as <|im_end|> for the special tokens they name.")
    ] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Do not add begin and end of text.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Turn token ids into text.")] = False,
    repo: language.Repo = None,
    as_json: language.Json = False,
) -> None:
    """Show the tokens of a text: id and piece, one a line, and on stderr how many.

    Bytes that are part of a character are shown as \\xNN.
    """
    from headrace.cli._model import located
    from headrace.errors import InvalidInput
    from headrace.llm.formats import open_checkpoint
    from headrace.llm.tokenizer import load_tokenizer

    if decode and (chat or special or bare):
        raise InvalidInput("--decode does not go with --chat, --special or --bare")
    if chat and (special or bare):
        raise InvalidInput("--chat does not go with --special or --bare: a chat template writes its own marks")
    if system and not chat:
        raise InvalidInput("--system goes with --chat")
    given = language.stdin_text() if text == "-" else text
    path, config = located(model, repo)
    template = language.engine_options(config).get("chat_template")
    checkpoint = open_checkpoint(path)
    try:
        tokenizer = load_tokenizer(checkpoint.metadata)
        if decode:
            _print_text(tokenizer, _ids(given), as_json)
            return
        if chat:
            from headrace.llm.chat import Chat

            messages = [{"role": "system", "content": system}] if system else []
            ids = Chat(checkpoint.metadata, tokenizer, template).encode([*messages, {"role": "user", "content": given}])
        else:
            ids = tokenizer.encode(given, special=not bare, parse_special=special)
    finally:
        checkpoint.close()
    _print_tokens(tokenizer, ids, as_json)


def _ids(text: str) -> list[int]:
    from headrace.errors import InvalidInput

    words = re.split(r"[\s,\[\]]+", text.strip("[] \t\r\n"))
    if wrong := next((word for word in words if word and not word.isdecimal()), ""):
        raise InvalidInput(f"--decode: expected token ids such as 504 1223, got {wrong[:40]!r}")
    return [int(word) for word in words if word]


def _print_tokens(tokenizer: Tokenizer, ids: list[int], as_json: bool) -> None:
    pieces = [tokenizer.token_bytes(token).decode("utf-8", "backslashreplace") for token in ids]
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode({"count": len(ids), "ids": ids, "pieces": pieces}).decode())
        return
    width = max((len(str(token)) for token in ids), default=1)
    for token, piece in zip(ids, pieces, strict=True):
        mark = "  special" if tokenizer.is_special(token) else ""
        typer.echo(f"{token:>{width}}  {_quoted(piece)}{mark}")
    typer.echo(f"{len(ids)} token{'' if len(ids) == 1 else 's'}", err=True)


def _quoted(piece: str) -> str:
    """In quotes, on one line; what `backslashreplace` made of bytes stays as it is."""
    return repr(piece).replace("\\\\x", "\\x")


def _print_text(tokenizer: Tokenizer, ids: list[int], as_json: bool) -> None:
    text = tokenizer.decode(ids)
    if as_json:
        import msgspec

        text = msgspec.json.encode({"count": len(ids), "text": text}).decode()
    typer.echo(text)
