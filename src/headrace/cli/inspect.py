"""`headrace inspect`: a model's name or path in, what is in its files and what it takes to run it out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._complete import references
from headrace.cli._model import MODEL_HELP

if TYPE_CHECKING:
    from headrace.llm.formats.checkpoint import Checkpoint

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace inspect smollm2

headrace inspect ./model.gguf --tensors --metadata

headrace inspect ./Llama-3.1-8B --context 32768 --json | jq .memory
"""

# Values of an array that are shown; a vocabulary has hundreds of thousands.
_SHOWN = 8
_TEXT = 100


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=references)],
    context: Annotated[
        int, typer.Option(metavar="N", min=0, help="Tokens to plan memory for. Default: all the model can take.")
    ] = 0,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="List every key of the metadata.")] = False,
    repo: Annotated[
        Path | None, typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with everything.")] = False,
) -> None:
    """Show a model's architecture, tensors, metadata, and the memory it takes. Nothing is loaded.

    A file whose model cannot be run is shown too, with the reason.
    """
    from headrace.cli._model import model_file
    from headrace.llm.formats import open_checkpoint

    checkpoint = open_checkpoint(model_file(model, repo))
    try:
        report = examine(checkpoint, context)
    finally:
        checkpoint.close()
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(report).decode())
        return
    for line in describe(report):
        typer.echo(line)
    if tensors:
        typer.echo("\ntensors")
        for line in _table(
            [[_clean(t["name"]), t["type"], str(t["shape"]), str(t["size_bytes"])] for t in report["tensors"]]
        ):
            typer.echo(f"  {line}")
    if metadata:
        typer.echo("\nmetadata")
        for line in _table([[_clean(key), _as_text(value)] for key, value in report["metadata"].items()]):
            typer.echo(f"  {line}")


def examine(checkpoint: Checkpoint, context: int = 0) -> dict[str, Any]:
    """The whole report as plain data; `problem` says why the model cannot be run, or is "".

    Raises `InvalidInput` for a `context` that the model does not have.
    """
    tensors = [
        {"name": t.name, "type": t.type, "shape": list(t.shape), "size_bytes": int(t.data.size)}
        for t in checkpoint.tensors.values()
    ]
    report: dict[str, Any] = {
        "path": checkpoint.path,
        "files": [{"path": file, "size_bytes": Path(file).stat().st_size} for file in checkpoint.files],
        "architecture": str(checkpoint.metadata.get("general.architecture", "")),
        "name": str(checkpoint.metadata.get("general.name", "")),
        "parameters": sum(_product(t.shape) for t in checkpoint.tensors.values()),
        "types": dict(Counter(str(tensor["type"]) for tensor in tensors).most_common()),
        "config": None,
        "memory": None,
        "problem": "",
        "tensors": tensors,
        "metadata": {key: _plain(value) for key, value in checkpoint.metadata.items()},
    }
    from headrace.errors import LoadFailed

    try:
        report["config"], report["memory"] = _plan(checkpoint, context)
    except LoadFailed as error:
        report["problem"] = str(error)
    return report


def _plan(checkpoint: Checkpoint, context: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's sizes, and the bytes it takes for a sequence of `context` tokens."""
    from headrace.llm.config import ModelConfig
    from headrace.llm.execution import PAGE_TOKENS
    from headrace.llm.kernels import packed_size
    from headrace.llm.models import build
    from headrace.llm.settings import page_bytes

    config = ModelConfig.from_checkpoint(checkpoint)
    if context:
        config = config.with_context(context)
    trace = build(config, checkpoint)
    names = ("n_layers", "width", "ffn_width", "n_heads", "n_kv_heads", "head_dim", "vocab_size")
    sizes = {name: getattr(config, name) for name in names}
    sizes |= {"context_length": config.context_length, "windowed_layers": sum(map(bool, config.windows))}
    a_token = {kind: page_bytes(trace, kind) // PAGE_TOKENS for kind in ("f16", "int8")}
    pages = -(-config.context_length // PAGE_TOKENS)
    return sizes, {
        "weights_bytes": packed_size(trace, checkpoint),
        "kv_bytes_per_token": a_token,
        "context": config.context_length,
        "kv_bytes": {kind: pages * PAGE_TOKENS * size for kind, size in a_token.items()},
    }


def describe(report: dict[str, Any]) -> list[str]:
    """The report's head as lines for people."""
    from headrace.store.progress import format_bytes

    total = sum(file["size_bytes"] for file in report["files"])
    more = f" in {len(report['files'])} files" if len(report["files"]) > 1 else ""
    types = ", ".join(f"{count} {kind}" for kind, count in report["types"].items())
    rows = [["name", _clean(report["name"]) or "(none)"], ["architecture", _clean(report["architecture"]) or "(none)"]]
    if config := report["config"]:
        windowed = config["windowed_layers"]
        rows += [
            ["layers", f"{config['n_layers']}{f', {windowed} of them with a window' if windowed else ''}"],
            ["width", f"{config['width']}, feed-forward {config['ffn_width']}"],
            ["heads", f"{config['n_heads']} of {config['head_dim']}, {config['n_kv_heads']} for keys and values"],
            ["vocabulary", f"{config['vocab_size']:,}"],
        ]
    rows += [
        ["parameters", f"{report['parameters']:,}"],
        ["size", f"{format_bytes(total)}{more}"],
        ["tensors", f"{len(report['tensors'])}: {types}" if types else "none"],
    ]
    if memory := report["memory"]:
        a_token, kv = memory["kv_bytes_per_token"], memory["kv_bytes"]
        rows += [
            ["weights", f"{format_bytes(memory['weights_bytes'])} in memory"],
            ["kv cache", f"{a_token['f16']:,} bytes a token as f16, {a_token['int8']:,} as int8"],
            ["", f"{format_bytes(kv['f16'])} or {format_bytes(kv['int8'])} for {memory['context']:,} tokens"],
        ]
    lines = [report["path"], *(f"  {line}" for line in _table(rows))]
    return [*lines, f"  cannot be run: {report['problem']}"] if report["problem"] else lines


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    return ["  ".join(c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows]


def _clean(text: str) -> str:
    """Without what would move a terminal's cursor: a file's texts are untrusted."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product


def _plain(value: Any) -> Any:
    """For JSON: a long array becomes its length and first values."""
    if isinstance(value, str | bool | int | float):
        return value
    values = [item.item() if hasattr(item, "item") else item for item in value[:_SHOWN]]
    return {"length": len(value), "first": values} if len(value) > _SHOWN else values


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['length']} values: {', '.join(map(repr, value['first']))}, …"
    text = repr(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
