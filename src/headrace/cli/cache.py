"""`headrace cache`: the weights kept for quick loads; what there is and how much flows out, `clear` lets it go."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.llm.weights import WeightCache

__all__ = ["command"]

_LIST_EPILOG = """[bold]Examples[/bold]

headrace cache

headrace cache --json

headrace cache clear

The cache is at $HEADRACE_CACHE and holds at most $HEADRACE_CACHE_BYTES (0 keeps nothing).
"""

command = typer.Typer(
    name="cache",
    help="Show or clear the weights that are kept repacked, so that models load quickly.",
    epilog=_LIST_EPILOG,
    rich_markup_mode="rich",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@command.callback(invoke_without_command=True)
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """List the weights that are kept, the most recently used first."""
    if context.invoked_subcommand is None:
        _list(as_json)


@command.command("list", epilog="[bold]Example[/bold]\n\nheadrace cache list")
def list_again(as_json: AsJson = False) -> None:
    """List the weights that are kept, as `headrace cache` does."""
    _list(as_json)


@command.command(epilog="[bold]Example[/bold]\n\nheadrace cache size --json")
def size(as_json: AsJson = False) -> None:
    """Print how much is kept and how much may be."""
    from headrace.store.progress import format_bytes

    cache = _cache()
    total = sum(entry.size_bytes for entry in cache.entries())
    if as_json:
        _print({"size_bytes": total, "limit_bytes": cache.limit_bytes})
    else:
        typer.echo(f"{format_bytes(total)} of at most {format_bytes(cache.limit_bytes)}")


@command.command(epilog="[bold]Example[/bold]\n\nls -l $(headrace cache path)")
def path() -> None:
    """Print the folder of the weights."""
    typer.echo(str(_cache().folder))


@command.command(epilog="[bold]Example[/bold]\n\nheadrace cache clear")
def clear(as_json: AsJson = False) -> None:
    """Remove all weights that are kept. Models that are loaded go on; the next load packs its weights again."""
    from headrace.store.progress import format_bytes

    freed = _cache().clear()
    if as_json:
        _print({"freed_bytes": freed})
    else:
        typer.echo(f"freed {format_bytes(freed)}")


@command.command(epilog="[bold]Example[/bold]\n\nheadrace cache verify")
def verify(as_json: AsJson = False) -> None:
    """Read all weights that are kept and remove what is damaged; it is packed again when it is needed.

    Exit status 1 if something was.
    """
    from headrace.errors import IntegrityError

    cache = _cache()
    entries, damaged = cache.entries(), []
    for entry in entries:
        try:
            cache.verify(entry.key)
        except IntegrityError as error:
            damaged.append({"key": entry.key, "error": str(error)})
            if not as_json:
                typer.echo(f"headrace: {error}; removed", err=True)
    if as_json:
        _print({"verified": len(entries) - len(damaged), "damaged": damaged})
    elif not damaged:
        typer.echo(f"all weights are sound ({len(entries)} file{'' if len(entries) == 1 else 's'})")
    if damaged:
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from headrace.store.progress import format_bytes

    cache = _cache()
    entries = cache.entries()
    if as_json:
        rows = [
            {
                "key": entry.key,
                "model": entry.label,
                "path": str(entry.path),
                "size_bytes": entry.size_bytes,
                "used_at_s": entry.used_at_s,
            }
            for entry in entries
        ]
        _print({"folder": str(cache.folder), "limit_bytes": cache.limit_bytes, "weights": rows})
        return
    if not entries:
        typer.echo(f"no weights in {cache.folder}")
        return
    lines = [["KEY", "SIZE", "USED", "MODEL"]]
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_at_s))
        lines.append([entry.key[:12], format_bytes(entry.size_bytes), used, entry.label or "(damaged)"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cache() -> WeightCache:
    from headrace.llm.weights import WeightCache

    return WeightCache()


def _print(value: dict[str, Any]) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())
