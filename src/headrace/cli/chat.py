"""`headrace chat`: a conversation with a language model in the terminal; questions in, answers out as they are written.

On a terminal there are history and commands; when standard input is a file or a pipe, each of its lines is a question.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import _language as language

if TYPE_CHECKING:
    from headrace.llm.engine import Engine
    from headrace.llm.params import SamplingParams

__all__ = ["EPILOG", "Conversation", "command"]

EPILOG = """[bold]Examples[/bold]

headrace chat smollm2

headrace chat smollm2 --system 'Answer in one sentence.' --temperature 0.7

printf 'What is a headrace?\\nAnd a tailrace?\\n' | headrace chat smollm2 --temperature 0
"""

HELP = """/help            this list
/reset           forget what was said, but not the system message
/system [TEXT]   show the system message, or set it and begin anew; /system - removes it
/save FILE       write the conversation as JSON
/quit            leave; so does Ctrl-D
Ctrl-C stops the answer, not the chat."""


def command(
    model: language.Model,
    system: Annotated[str, typer.Option(metavar="TEXT", help="What the model is told first.")] = "",
    repo: language.Repo = None,
    max_tokens: language.MaxTokens = 1024,
    temperature: language.Temperature = 0.7,
    top_k: language.TopK = 40,
    top_p: language.TopP = 0.95,
    min_p: language.MinP = 0.05,
    repetition_penalty: language.RepetitionPenalty = 1.0,
    seed: language.Seed = None,
    stop: language.Stop = None,
    threads: language.Threads = 0,
    context: language.Context = 0,
) -> None:
    """Talk to a language model, in this process.

    Type /help for the commands. Ctrl-C stops an answer; Ctrl-D or /quit ends the chat. With questions from a file or a
    pipe, one a line, only the answers are printed.
    """
    from headrace.llm.params import SamplingParams

    sampling = SamplingParams(
        max_tokens=max_tokens or None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
    )
    with language.open_engine(model, repo, threads=threads, context=context) as engine:
        talk = Conversation(engine, sampling, system)
        if sys.stdin is not None and sys.stdin.isatty():
            _interactive(talk)
        else:
            for line in language.stdin_text().splitlines():
                if line.strip():
                    talk.ask(line)


class Conversation:
    """What was said so far.

    Attributes:
        messages: Role and content of each, as the engine takes them.
    """

    def __init__(self, engine: Engine, sampling: SamplingParams, system: str = "") -> None:
        self.messages: list[dict[str, str]] = []
        self._engine = engine
        self._sampling = sampling
        self.reset(system)

    @property
    def system(self) -> str:
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else ""

    def reset(self, system: str) -> None:
        """Begin anew under this system message ("": none)."""
        self.messages = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str) -> str:
        """Put a question and print the answer as it comes; returns a line about its speed. Ctrl-C ends the answer, and
        what there is of it counts as said. A question that is refused is not kept."""
        self.messages.append({"role": "user", "content": question})
        text, tokens, first_s, cut = "", 0, 0.0, ""
        began_s = time.perf_counter()
        try:
            sampling, forgotten = self._fit()
            if forgotten:
                cut = f", the oldest {forgotten} messages forgotten"
            with self._engine.generate(self.messages, sampling) as generation:
                try:
                    for chunk in generation:
                        first_s = first_s or time.perf_counter() - began_s
                        tokens += len(chunk.tokens)
                        text += chunk.text
                        typer.echo(chunk.text, nl=False)
                except KeyboardInterrupt:
                    cut += ", stopped"
        except BaseException:
            self.messages.pop()
            raise
        typer.echo()
        self.messages.append({"role": "assistant", "content": text})
        rest_s = time.perf_counter() - began_s - first_s
        speed = f", {(tokens - 1) / rest_s:.0f} tokens/s" if tokens > 1 and rest_s > 0 else ""
        return f"[{tokens} tokens{speed}, first after {first_s * 1e3:.0f} ms{cut}]"

    def _fit(self) -> tuple[SamplingParams, int]:
        """Forget the oldest turns until the context has room for an answer; how many messages that were, and the
        parameters for what room there is. A question that does not fit alone is left to the engine to refuse."""
        from msgspec.structs import replace

        chat, context = self._engine.chat, self._engine.settings.max_context
        assert chat is not None, "a loaded model has a template"
        limit = self._sampling.max_tokens or context
        first, forgotten = (1 if self.system else 0), 0
        while (n_prompt := len(chat.encode(self.messages))) + min(limit, context // 4) > context:
            if len(self.messages) < first + 3:
                break
            del self.messages[first : first + 2]
            forgotten += 2
        return replace(self._sampling, max_tokens=max(1, min(limit, context - n_prompt))), forgotten

    def save(self, path: Path) -> None:
        """Write the messages as JSON. Raises `OSError`."""
        import msgspec

        path.write_bytes(msgspec.json.format(msgspec.json.encode(self.messages)) + b"\n")


def _interactive(talk: Conversation) -> None:
    from rich.console import Console

    from headrace.errors import HeadraceError

    aside = Console(stderr=True, style="dim", highlight=False)
    aside.print("/help lists the commands; Ctrl-D leaves", markup=False)
    for line in _lines():
        try:
            if line.startswith("/"):
                if not _obey(talk, line, aside.print):
                    return
            else:
                aside.print(talk.ask(line), markup=False)
        except HeadraceError as error:
            aside.print(str(error), markup=False)


def _lines() -> Iterator[str]:
    """What is typed, line by line, with history; Ctrl-C drops a line, Ctrl-D ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` its editing and history
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            continue
        if line:
            yield line


def _obey(talk: Conversation, line: str, say: object) -> bool:
    """Carry out a command; False when it is time to leave."""
    assert callable(say)
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name in ("/quit", "/exit"):
        return False
    if name == "/reset":
        talk.reset(talk.system)
        say("begun anew")
    elif name == "/system":
        if rest:
            talk.reset("" if rest == "-" else rest)
        say(talk.system or "no system message", markup=False)
    elif name == "/save" and rest:
        try:
            talk.save(Path(rest).expanduser())
            say(f"{len(talk.messages)} messages written to {rest}", markup=False)
        except OSError as error:
            say(f"{rest}: {error.strerror}", markup=False)
    elif name == "/help":
        say(HELP, markup=False)
    else:
        wrong = "/save needs a FILE" if name == "/save" else f"unknown command: {name}"
        say(f"{wrong}; /help lists the commands", markup=False)
    return True
