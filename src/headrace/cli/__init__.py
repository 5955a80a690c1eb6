"""The `headrace` command: one module per sub-command, registered here by name."""

from __future__ import annotations

import os
import sys

import typer

import headrace
from headrace.cli import (
    bench,
    cache,
    chat,
    curve,
    doctor,
    eval,
    generate,
    infer,
    inspect,
    models,
    policy,
    publish,
    pull,
    rollout,
    serve,
    sweep,
    tokenize,
    train,
)
from headrace.errors import HeadraceError

__all__ = ["app", "main"]

app = typer.Typer(
    name="headrace",
    help="Serve models and pipelines, and run language models, on the CPUs of one box.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command("doctor", epilog=doctor.EPILOG)(doctor.command)
app.command("infer", epilog=infer.EPILOG)(infer.command)
app.command("serve", epilog=serve.EPILOG)(serve.command)
app.command("chat", epilog=chat.EPILOG)(chat.command)
app.command("generate", epilog=generate.EPILOG)(generate.command)
app.command("tokenize", epilog=tokenize.EPILOG)(tokenize.command)
app.command("pull", epilog=pull.EPILOG)(pull.command)
app.command("publish", epilog=publish.EPILOG)(publish.command)
app.command("train", epilog=train.EPILOG)(train.command)
app.command("rollout", epilog=rollout.EPILOG)(rollout.command)
app.command("curve", epilog=curve.EPILOG)(curve.command)
app.command("sweep", epilog=sweep.EPILOG)(sweep.command)
app.add_typer(models.command, name="models")
app.command("inspect", epilog=inspect.EPILOG)(inspect.command)
app.add_typer(cache.command, name="cache")
eval.command.command("policy", epilog=policy.EPILOG)(policy.command)
app.add_typer(eval.command, name="eval")
app.add_typer(bench.command, name="bench")


def main() -> None:
    """Entry point: errors of the Headrace tree, and output that cannot be written, become one clear line and exit
    status 1."""
    try:
        app()
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if not _drop_output():
            raise
        typer.echo(f"headrace: standard output: {error.strerror}", err=True)
        sys.exit(1)


def _drop_output() -> bool:
    """Whether standard output takes no line break either; what it holds is dropped then, or would fail at exit."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
