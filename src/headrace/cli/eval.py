"""`headrace eval`: a model and a text in, how well it predicts the text and how far quantised execution strays out."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from headrace.cli._language import Json, Model, Repo, read_text
from headrace.errors import InvalidInput

if TYPE_CHECKING:
    from headrace.llm.evaluate import Divergence, Perplexity, Window
    from headrace.llm.execution import Executor
    from headrace.llm.formats.checkpoint import Checkpoint
    from headrace.llm.trace import Trace

__all__ = ["ExecutorName", "KvName", "Subject", "command", "opened"]

_EXAMPLES = {
    "perplexity": ("smollm2", "./model.gguf --text book.txt --context 2048"),
    "kl": ("smollm2 --tokens 2000 --json | jq .mean_kl", "smollm2 --executor int8 --kv int8"),
}

DEFAULT_CONTEXT = 1024


def _epilog(*names: str) -> str:
    lines = [f"headrace eval {name} {example}" for name in names for example in _EXAMPLES[name]]
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


command = typer.Typer(
    name="eval",
    help="Measure a language model on a text (perplexity, divergence from the exact model), or a trained policy.",
    no_args_is_help=True,
    epilog=_epilog("perplexity", "kl"),
    rich_markup_mode="rich",
)


class ExecutorName(enum.StrEnum):
    """What runs the model: the native kernels, the exact floats, or these with inputs rounded to int8 by blocks."""

    native = "native"
    reference = "reference"
    int8 = "int8"


class KvName(enum.StrEnum):
    """How keys and values are kept."""

    f16 = "f16"
    int8 = "int8"


class ActivationsName(enum.StrEnum):
    """How what matrices are multiplied with is rounded: to 8 or to 12 bits."""

    int8 = "int8"
    int12 = "int12"


class WeightBitsName(enum.StrEnum):
    """Bits of weights."""

    eight = "8"
    four = "4"


Text = Annotated[
    Path | None, typer.Option(metavar="FILE", help="UTF-8 text. Default: a varied one that comes with Headrace.")
]
Context = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=2,
        show_default=f"{DEFAULT_CONTEXT}, or what the model was made for",
        help="Tokens of a window; each window starts afresh.",
    ),
]
Tokens = Annotated[int, typer.Option(metavar="N", min=0, help="Stop after that many tokens of the text; 0: all.")]
Who = Annotated[ExecutorName, typer.Option(help="What runs the model; int8 is the reference with rounded inputs.")]
Kv = Annotated[KvName, typer.Option(help="How keys and values are kept.")]
Activations = Annotated[ActivationsName, typer.Option(help="How the native executor rounds what it multiplies with.")]
WeightBits = Annotated[
    WeightBitsName, typer.Option(help="Of matrices that the file holds as floats, as the native executor packs them.")
]
Threads = Annotated[int, typer.Option(metavar="N", min=0, help="Threads of the native executor; 0: one a CPU.")]


Generated = Annotated[
    bool,
    typer.Option(
        "--generated", help="Compute tokens as those of answers, not of prompts; with AMX these are rounded otherwise."
    ),
]


Measure: TypeAlias = "Callable[[Subject, Executor, bool, Callable[[int], None]], tuple[Perplexity | Divergence, str]]"


def _add(name: str, measure: Measure) -> None:
    """The command of that name: `measure` in, given what runs the model and told how many tokens are done, what it
    found and says of it out."""

    @command.command(name, help=measure.__doc__, epilog=_epilog(name))
    def run(
        model: Model,
        text: Text = None,
        context: Context = None,
        tokens: Tokens = 0,
        executor: Who = ExecutorName.native,
        kv: Kv = KvName.f16,
        activations: Activations = ActivationsName.int12,
        weight_bits: WeightBits = WeightBitsName.eight,
        generated: Generated = False,
        threads: Threads = 0,
        repo: Repo = None,
        as_json: Json = False,
    ) -> None:
        with opened(model, repo, text, context, tokens) as subject:
            runner = subject.executor(executor, kv, activations, weight_bits, threads)
            with contextlib.closing(runner), _bar(subject.n_predictions, as_json) as advance:
                found, lines = measure(subject, runner, generated, advance)
        _print(found, lines, as_json)


def _perplexity(
    subject: Subject, runner: Executor, generated: bool, advance: Callable[[int], None]
) -> tuple[Perplexity, str]:
    """How well the model predicts a text: exp of the mean surprise; lower is better."""
    from headrace.llm import evaluate

    found = evaluate.perplexity(runner, subject.windows, generated=generated, progress=advance)
    return found, f"perplexity {found.perplexity:.4f} +- {found.error:.4f} over {found.tokens} tokens"


def _kl(subject: Subject, runner: Executor, generated: bool, advance: Callable[[int], None]) -> tuple[Divergence, str]:
    """How far an executor's distributions are from those of the same weights run as exact floats."""
    from headrace.llm import evaluate

    with contextlib.closing(subject.reference()) as truth:
        found = evaluate.divergence(runner, truth, subject.windows, generated=generated, progress=advance)
    return found, (
        f"KL to the exact model: mean {found.mean_kl:.2g}, 99 % below {found.p99_kl:.2g}, max {found.max_kl:.2g} nats\n"
        f"same likeliest token {100 * found.same_top1:.2f} % of {found.tokens}\n"
        f"perplexity {found.perplexity:.4f}, exact {found.reference_perplexity:.4f}"
    )


_add("perplexity", _perplexity)
_add("kl", _kl)


@dataclass(frozen=True)
class Subject:
    """A loaded model and the windows of the text it is measured on."""

    checkpoint: Checkpoint
    trace: Trace
    windows: list[Window]

    @property
    def n_predictions(self) -> int:
        return sum(len(window) - 1 for window in self.windows)

    @property
    def n_pages(self) -> int:
        from headrace.llm.execution import PAGE_TOKENS

        return -(-max(map(len, self.windows)) // PAGE_TOKENS)

    def executor(
        self,
        name: ExecutorName,
        kv: KvName,
        activations: ActivationsName,
        weight_bits: WeightBitsName,
        threads: int,
    ) -> Executor:
        """The one that is measured."""
        if name is not ExecutorName.native:
            kept: Literal["float16", "int8"] = "float16" if kv is KvName.f16 else "int8"
            return self.reference(simulate_int8=name is ExecutorName.int8, kv=kept)
        from headrace.llm.kernels import NativeExecutor

        return NativeExecutor(
            self.trace,
            self.checkpoint,
            n_pages=self.n_pages,
            threads=threads or None,
            kv_type=kv.value,
            activations=activations.value,
            weight_bits=8 if weight_bits is WeightBitsName.eight else 4,
        )

    def reference(self, simulate_int8: bool = False, kv: Literal["exact", "float16", "int8"] = "exact") -> Executor:
        """The one that is right, in float32; or what it is with some of the native one's rounding."""
        import numpy as np

        from headrace.llm.reference import ReferenceExecutor

        return ReferenceExecutor(
            self.trace, self.checkpoint, n_pages=self.n_pages, dtype=np.float32, simulate_int8=simulate_int8, kv=kv
        )


@contextlib.contextmanager
def opened(model: str, repo: Path | None, text: Path | None, context: int | None, limit: int) -> Iterator[Subject]:
    """Load `model` and cut the text's first `limit` (0: all) tokens into windows of `context`.

    Raises `InvalidInput` for more than the model was made for.
    """
    from headrace.cli._model import model_file
    from headrace.llm.evaluate import sample_text, windows
    from headrace.llm.loader import load_model
    from headrace.llm.tokenizer import load_tokenizer

    content = sample_text() if text is None else read_text(text)
    checkpoint, config, trace = load_model(model_file(model, repo))
    try:
        most = config.context_length
        if context is not None and context > most:
            raise InvalidInput(f"--context: expected at most {most}, which the model was made for, got {context}")
        tokenizer = load_tokenizer(checkpoint.metadata)
        tokens = tokenizer.encode(content, special=False)
        bos = tokenizer.bos_id if tokenizer.marks.add_bos else None
        cut = windows(tokens[:limit] if limit else tokens, context or min(DEFAULT_CONTEXT, most), bos)
        yield Subject(checkpoint, trace, cut)
    finally:
        checkpoint.close()


@contextlib.contextmanager
def _bar(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that counts tokens."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("tokens"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("tokens", total=total)
        yield lambda n: progress.advance(task, n)


def _print(found: Perplexity | Divergence, lines: str, as_json: bool) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(found).decode() if as_json else lines)
