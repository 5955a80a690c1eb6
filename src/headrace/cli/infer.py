"""`headrace infer`: a file or arrays flow in, go through a model or pipeline (on a server or in this process), and the
answer comes out readably.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from headrace.cli._complete import media_types, models
from headrace.errors import HeadraceError, InvalidInput, NotFound, Unavailable

if TYPE_CHECKING:
    from headrace.serve.protocol import Tensors, TensorSpec

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace infer ocr page.png

headrace infer vad - --json < speech.wav

headrace infer resnet --input x=batch.npy

headrace infer mlp input.json --url http://10.0.0.7:8000

headrace infer ocr page.png --repo ./models
"""

_MAGIC = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x93NUMPY", "application/x-npy"),
)


class Target(Protocol):
    """What answers: `headrace.serve.client.Client`, or the same calls in this process."""

    def names(self) -> list[str]: ...
    def specs(self, model: str) -> tuple[TensorSpec, ...]: ...
    def infer(self, model: str, tensors: Tensors) -> Tensors: ...
    def pipeline(self, name: str, data: bytes, media_type: str) -> Any: ...


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model or pipeline.", autocompletion=models)],
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="For a pipeline an image, a WAV or a text; for a model a .npy, or JSON: an array, an object of "
            'arrays by input, or {"inputs": […]}. - reads standard input.',
        ),
    ] = "",
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE.npy", help="One input of a model; repeatable.")
    ] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="The server to ask (default http://127.0.0.1:8000).")] = "",
    repo: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run in this process from a model repository, without a server."),
    ] = None,
    media_type: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Media type of FILE (default: as its bytes or name say).",
            autocompletion=media_types,
        ),
    ] = "",
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.001, help="Longest wait, in seconds.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")] = False,
) -> None:
    """Send a file to a pipeline, or tensors to a model, and print the answer.

    The model or pipeline runs on the server at --url, or in this process with --repo.
    """
    if bool(file) == bool(inputs):
        raise InvalidInput("give either FILE (or - for standard input) or --input NAME=FILE.npy")
    if url and repo is not None:
        raise InvalidInput("give either --url (ask a server) or --repo (run in this process)")
    data = _read(file) if file else b""
    kind = media_type or _media_type(file, data)
    with _target(url, repo, timeout_s) as target:
        try:
            answer = _ask(target, name, inputs or [], data, kind)
        except NotFound as error:
            raise NotFound(_listing(str(error), target)) from error
    from headrace.cli._answer import as_text, to_json

    typer.echo(to_json(answer) if as_json else as_text(answer))


def _ask(target: Target, name: str, inputs: Sequence[str], data: bytes, kind: str) -> Any:
    """The answer: `Tensors` of a model, or the JSON value of a pipeline."""
    if inputs:
        return target.infer(name, _load_inputs(inputs))
    if kind in ("application/x-npy", "application/json"):
        specs = _specs(target, name)
        if specs is not None:
            return target.infer(name, _tensors(data, kind, specs, name))
    try:
        return target.pipeline(name, data, kind)
    except (NotFound, InvalidInput):
        specs = _specs(target, name)
        if specs is None:
            raise
        raise InvalidInput(
            f"{name!r} is a model, not a pipeline: it takes tensors, not {kind}. "
            f"Its inputs are {_describe(specs)}; send a .npy or JSON file, or --input NAME=FILE.npy"
        ) from None


def _specs(target: Target, name: str) -> tuple[TensorSpec, ...] | None:
    """The inputs of model `name`, or None when it is no model (a pipeline, or nothing at all)."""
    try:
        return target.specs(name)
    except (NotFound, InvalidInput):
        return None


def _target(url: str, repo: Path | None, timeout_s: float) -> contextlib.AbstractContextManager[Target]:
    if repo is not None:
        from headrace.serve.local import Local

        return Local(repo, timeout_s=timeout_s)
    return _remote(url, timeout_s)


@contextlib.contextmanager
def _remote(url: str, timeout_s: float) -> Iterator[Target]:
    from headrace.serve.client import DEFAULT_URL, Client

    try:
        with Client(url or DEFAULT_URL, timeout_s=timeout_s) as client:
            yield client
    except Unavailable as error:
        if url or not isinstance(error.__cause__, ConnectionRefusedError):
            raise
        raise Unavailable(f"{error}; or run without a server: headrace infer … --repo DIR") from error


def _read(file: str) -> bytes:
    if file == "-" and sys.stdin is None:  # as Python has it where it is closed
        raise InvalidInput("standard input: expected data, but it is closed")
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read: {error.strerror}") from error


def _media_type(file: str, data: bytes) -> str:
    """From the bytes where they say it, else from the file's name."""
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] in (b"WAVE", b"WEBP"):
        return "audio/wav" if data[8:12] == b"WAVE" else "image/webp"
    import mimetypes

    guessed = mimetypes.guess_type(file)[0] or "application/octet-stream"
    return f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed


def _load_inputs(inputs: Sequence[str]) -> Tensors:
    tensors: Tensors = {}
    for item in inputs:
        name, separator, path = item.partition("=")
        if not separator or not name or not path:
            raise InvalidInput(f"--input {item!r}: expected NAME=FILE.npy")
        if name in tensors:
            raise InvalidInput(f"--input {name}: given twice")
        tensors[name] = _npy(_read(path), path)
    return tensors


def _npy(data: bytes, where: str) -> Any:
    import io

    import numpy as np

    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InvalidInput(f"{where}: not a .npy file of plain numbers: {error}") from error


def _tensors(data: bytes, kind: str, specs: Sequence[TensorSpec], name: str) -> Tensors:
    """Named arrays from a .npy file or from any of the JSON forms; JSON numbers take the model's own dtypes."""
    import numpy as np

    if kind == "application/x-npy":
        return {_only(specs, name): _npy(data, "FILE")}
    import msgspec

    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"FILE: not valid JSON: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("inputs"), list):
        from headrace.serve.codec.oip import decode

        return decode(data)[1]
    if not isinstance(value, dict):
        value = {_only(specs, name): value}
    dtypes = {spec.name: spec.dtype for spec in specs}
    tensors: Tensors = {}
    for key, rows in value.items():
        if key not in dtypes:
            raise InvalidInput(f"FILE: {name!r} has no input {key!r}; its inputs are {_describe(specs)}")
        try:
            tensors[key] = np.array(rows, dtypes[key])
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(f"FILE: input {key!r}: expected an array of {dtypes[key]}: {error}") from error
    return tensors


def _only(specs: Sequence[TensorSpec], name: str) -> str:
    if len(specs) != 1:
        raise InvalidInput(
            f"{name!r} has {len(specs)} inputs ({_describe(specs)}); name them with --input NAME=FILE.npy"
        )
    return specs[0].name


def _describe(specs: Sequence[TensorSpec]) -> str:
    from headrace.serve.tensors import datatype

    return ", ".join(f"{spec.name} {datatype(spec.dtype)}{list(spec.shape)}" for spec in specs)


def _listing(message: str, target: Target) -> str:
    """`message`, and what there is instead, unless the server has said that already or cannot say."""
    try:
        names = target.names()
    except HeadraceError:
        return message
    if all(name in message for name in names) and names:
        return message
    return f"{message}; there is: {', '.join(names) or 'nothing'}"
