"""`headrace models`: in flows a repository, out comes what is in it; `switch` and `remove` change it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.store.versions import ModelInfo, ModelStore

__all__ = ["command"]

_LIST_EPILOG = """[bold]Examples[/bold]

headrace models

headrace models --verify --json

headrace models switch resnet v2

headrace models remove resnet:v1
"""

command = typer.Typer(
    name="models",
    help="List the models of the repository; switch or remove versions.",
    epilog=_LIST_EPILOG,
    rich_markup_mode="rich",
)

Repo = Annotated[
    Path | None, typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models.")
]


@command.callback(invoke_without_command=True)
def list_models(
    context: typer.Context,
    repo: Repo = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of the current versions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the models: current version, size, source, and with --verify whether every byte is right.

    Exit status 1 if a version fails the verification.
    """
    context.obj = repo
    if context.invoked_subcommand is not None:
        return
    repository = _repository(repo)
    rows = [_row(repository, name, verify) for name in repository.names()]
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode({"repo": str(repository.root), "models": rows}).decode())
    elif not rows:
        typer.echo(f"no models in {repository.root}; try: headrace pull ocr")
    else:
        _print_table(rows, verify)
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


@command.command(epilog="[bold]Example[/bold]\n\nheadrace models switch resnet v2")
def switch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Model.")],
    version: Annotated[str, typer.Argument(help="Version to make current.")],
    repo: Repo = None,
) -> None:
    """Verify a version and make it the current one, in one step."""
    _repository(repo or context.obj).switch(name, version)
    typer.echo(f"{name}: {version} is current")


@command.command(
    epilog="[bold]Examples[/bold]\n\nheadrace models remove resnet:v1\n\nheadrace models remove vad --force"
)
def remove(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME[:VERSION]", help="A version, or a model with all of them.")],
    force: Annotated[bool, typer.Option("--force", help="Also remove the current version.")] = False,
    repo: Repo = None,
) -> None:
    """Remove a version, or a whole model; never the current version unless forced."""
    from headrace.store.names import split_reference

    name, version = split_reference(reference)
    _repository(repo or context.obj).remove(name, version, force=force)
    typer.echo(f"{reference}: removed")


def _repository(root: Path | None) -> ModelStore:
    from headrace.store.versions import ModelStore, default_root

    return ModelStore(root or default_root())


def _row(repository: ModelStore, name: str, verify: bool) -> dict[str, Any]:
    """Facts for one line; `verified` is None when not asked for or when there is nothing to verify."""
    import msgspec

    from headrace.errors import HeadraceError

    info: ModelInfo | None = None
    error, verified = "", None
    try:
        info = repository.info(name)
        if verify and info.kind == "model" and not info.current:
            error, verified = "no current version", False
        elif verify and info.current:
            from headrace.store.verify import verify as check

            check(repository.resolve(name))
            verified = True
    except HeadraceError as caught:
        error, verified = str(caught), False
    facts = msgspec.to_builtins(info) if info else {"name": name, "kind": "model", "current": "", "source": ""}
    return {"size_bytes": 0, **facts, "verified": verified, "error": error}


def _print_table(rows: list[dict[str, Any]], verify: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from headrace.store.progress import format_bytes

    table = Table("NAME", "CURRENT", "SIZE", "VERIFIED", "SOURCE", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        pipeline = row["kind"] == "pipeline"
        state = {True: "yes", False: "FAILED", None: "not checked"}[row["verified"]]
        table.add_row(
            row["name"],
            "(pipeline)" if pipeline else row["current"] or "none",
            "" if pipeline else format_bytes(row["size_bytes"]),
            "" if pipeline else state,
            row["source"],
        )
    Console(markup=False, highlight=False, soft_wrap=False).print(table)
    for row in rows:
        if row["error"]:
            typer.echo(f"headrace: {row['name']}: {row['error']}", err=True)
    if verify and not any(row["error"] for row in rows):
        typer.echo("all current versions are sound")
