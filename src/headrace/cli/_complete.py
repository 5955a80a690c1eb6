"""What the shell proposes after Tab: in flows the word so far, out come names from the repository. Never raises.

A completion that fails proposes nothing: an error here would land in the middle of the user's command line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

__all__ = [
    "algorithms",
    "environments",
    "media_types",
    "models",
    "references",
    "runs",
    "runs_and_environments",
    "sources",
    "versions",
]


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Models and pipelines of the repository."""
    return _beginning(incomplete, lambda: _store(ctx).names())


def references(ctx: typer.Context, incomplete: str) -> list[str]:
    """Models; after `NAME:` its versions."""

    def find() -> Iterable[str]:
        name, colon, _ = incomplete.partition(":")
        return [f"{name}:{one}" for one in _store(ctx).versions(name)] if colon else _store(ctx).names()

    return _beginning(incomplete, find)


def versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Versions of the model named before."""
    return _beginning(incomplete, lambda: _store(ctx).versions(ctx.params["name"]))


def sources(incomplete: str) -> list[str]:
    """Recipes, then files and folders."""

    def find() -> Iterator[str]:
        from headrace.store.recipe import recipe_names

        yield from recipe_names()
        folder, slash, _ = incomplete.rpartition("/")
        for path in sorted(Path(folder + slash).iterdir()):
            yield f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"

    return _beginning(incomplete, find)


def media_types(incomplete: str) -> list[str]:
    """Media types that pipelines take and whose files do not always tell."""
    known = ("application/json", "application/octet-stream", "application/x-npy", "audio/flac", "audio/mpeg")
    return _beginning(incomplete, lambda: (*known, "audio/ogg", "audio/wav", "image/jpeg", "image/png", "text/plain"))


def environments(incomplete: str) -> list[str]:
    """Environments that are shipped."""

    def find() -> Iterable[str]:
        from headrace.rl.envs.registry import SHIPPED

        return sorted(SHIPPED)

    return _beginning(incomplete, find)


def algorithms(incomplete: str) -> list[str]:
    """Ways to learn."""
    return _beginning(incomplete, lambda: ("a2c", "dqn", "impala", "ppo", "sac"))


def runs(incomplete: str) -> list[str]:
    """Folders of runs, checkpoints, and folders that may hold some."""

    def find() -> Iterator[str]:
        folder, slash, _ = incomplete.rpartition("/")
        for path in sorted(Path(folder + slash).iterdir()):
            if path.suffix == ".ckpt" or (path / "last.ckpt").is_file():
                yield f"{folder}{slash}{path.name}"
            elif path.is_dir() and not path.name.startswith("."):
                yield f"{folder}{slash}{path.name}/"

    return _beginning(incomplete, find)


def runs_and_environments(incomplete: str) -> list[str]:
    return [*runs(incomplete), *environments(incomplete)]


def _beginning(incomplete: str, find: Any) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(Exception):
        found.extend(one for one in find() if one.startswith(incomplete))
    return found


def _store(ctx: typer.Context) -> Any:
    """The repository that the words before name, on this command or the one above, else the default."""
    from headrace.store.versions import ModelStore, default_root

    given = ctx.params.get("repo") or (ctx.parent.params.get("repo") if ctx.parent else None)
    return ModelStore(Path(given) if given else default_root())
