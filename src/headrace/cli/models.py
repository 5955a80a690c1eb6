"""`headrace models`: in flows a repository, out comes what is in it; `switch` and `remove` change it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._complete import references, versions

if TYPE_CHECKING:
    from headrace.store.versions import ModelInfo, ModelStore

__all__ = ["command"]

_LIST_EPILOG = """[bold]Examples[/bold]

headrace models

headrace models --verify --json

headrace models switch resnet v2

headrace models remove resnet v1
"""

_DEFAULT_URL = "http://127.0.0.1:8000"

command = typer.Typer(
    name="models",
    help="List the models of the repository; switch or remove versions.",
    epilog=_LIST_EPILOG,
    rich_markup_mode="rich",
)

Repo = Annotated[
    Path | None, typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Hash every file of the current versions, and check that headrace.toml fits.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@command.callback(invoke_without_command=True)
def list_models(
    context: typer.Context,
    repo: Repo = None,
    verify: Verify = False,
    as_json: AsJson = False,
) -> None:
    """List the models: current version, size, source, and with --verify whether every byte is right.

    Exit status 1 if a version fails the verification.
    """
    context.obj = repo
    if context.invoked_subcommand is None:
        _list(repo, verify, as_json)


@command.command("list", epilog="[bold]Example[/bold]\n\nheadrace models list --verify")
def list_again(context: typer.Context, repo: Repo = None, verify: Verify = False, as_json: AsJson = False) -> None:
    """List the models, as `headrace models` does."""
    _list(repo or context.obj, verify, as_json)


def _list(repo: Path | None, verify: bool, as_json: bool) -> None:
    repository = _repository(repo)
    rows = [_row(repository, name, verify) for name in repository.names()]
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode({"repo": str(repository.root), "models": rows}).decode())
    elif not rows:
        import shlex

        from headrace.store.recipe import recipe_names

        where, names = f" --repo {shlex.quote(str(repo))}" if repo else "", ", ".join(recipe_names())
        typer.echo(f"no models in {repository.root}; get one with: headrace pull NAME{where} (NAME: {names})")
    else:
        _print_table(rows, verify)
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


@command.command(epilog="[bold]Example[/bold]\n\nheadrace models switch resnet v2")
def switch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME[:VERSION]", help="Model.", autocompletion=references)],
    version: Annotated[str, typer.Argument(help="Version to make current.", autocompletion=versions)] = "",
    repo: Repo = None,
) -> None:
    """Verify a version and make it the current one, in one step.

    A server that is running goes on with the version it has loaded until it is told to load the model again.
    """
    from headrace.errors import InvalidInput

    repository = _repository(repo or context.obj)
    name, version = _split(name, version)
    if not version:
        known = ", ".join(repository.versions(name)) or "none"
        raise InvalidInput(f"name the version: headrace models switch {name} VERSION; it has: {known}")
    repository.switch(name, version)
    typer.echo(f"{name}: {version} is current")
    load = f"{_DEFAULT_URL}/v2/repository/models/{name}/load"
    typer.echo(f"a server that is running takes it up with: curl -sS -X POST {load}", err=True)


@command.command(
    epilog="[bold]Examples[/bold]\n\nheadrace models remove resnet v1\n\nheadrace models remove vad --force"
)
def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME[:VERSION]", help="Model.", autocompletion=references)],
    version: Annotated[
        str, typer.Argument(help="Version to remove. Default: the model with all of them.", autocompletion=versions)
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Also remove the current version.")] = False,
    repo: Repo = None,
) -> None:
    """Remove a version, or a whole model; never the current version unless forced."""
    name, version = _split(name, version)
    _repository(repo or context.obj).remove(name, version, force=force)
    typer.echo(f"{name}{':' if version else ''}{version}: removed")


def _split(reference: str, version: str) -> tuple[str, str]:
    """Name and version ("" if none) from `NAME VERSION`, `NAME:VERSION` or `NAME`."""
    from headrace.errors import InvalidInput
    from headrace.store.names import check_version, split_reference

    name, said = split_reference(reference)
    if said and version:
        raise InvalidInput(f"{reference!r} names a version already; {version!r} is one too many")
    return name, said or (check_version(version) if version else "")


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
            repository.check(name)
            verified = True
    except HeadraceError as caught:
        error, verified = str(caught), False
    facts = msgspec.to_builtins(info) if info else {"name": name, "kind": "model", "current": "", "source": ""}
    return {"size_bytes": 0, **facts, "verified": verified, "error": error}


def _print_table(rows: list[dict[str, Any]], verify: bool) -> None:
    """One line a model; on a terminal a source that is too long for the line is cut."""
    from headrace.store.progress import format_bytes

    state = {True: "yes", False: "FAILED", None: "not checked"}
    lines = [["NAME", "CURRENT", "SIZE", *(["VERIFIED"] if verify else []), "SOURCE"]]
    for row in rows:
        pipeline = row["kind"] == "pipeline"
        cells = [
            row["name"],
            "(pipeline)" if pipeline else row["current"] or "none",
            "" if pipeline else format_bytes(row["size_bytes"]),
        ]
        if verify:
            cells.append("" if pipeline else state[row["verified"]])
        lines.append([*cells, row["source"]])
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    columns = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 0
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)).rstrip()
        typer.echo(text if not columns or len(text) <= columns else f"{text[: columns - 1]}…")
    for row in rows:
        if row["error"]:
            typer.echo(f"headrace: {row['name']}: {row['error']}", err=True)
    if verify and not any(row["error"] for row in rows):
        typer.echo("all current versions are sound")
