"""`headrace publish`: a training run in, its policy as a verified model in the repository."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli._complete import models, runs

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace publish runs/fast --as cartpole

headrace serve & curl -s localhost:8000/v2/models/cartpole/infer -d \
'{"inputs": [{"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0.1, 0]}]}'"""


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or one of its checkpoints.", autocompletion=runs)
    ],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the model.", autocompletion=models)],
    version: Annotated[str, typer.Option(metavar="V", help="Default: from the content's digest.")] = "",
    repo: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Export the policy of a run to ONNX, normalisation included, and make it a model that can be served.

    The best checkpoint is taken, else the last one. The exported model is held against the policy before it is
    installed.
    """
    from headrace.rl.export import export_run
    from headrace.rl.saved import find_checkpoint
    from headrace.store.pull import pull_model
    from headrace.store.versions import ModelStore, default_root

    checkpoint = find_checkpoint(run)
    model = export_run(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        path.write_bytes(model)
        pulled = pull_model(ModelStore(repo or default_root()), str(path), name=name, version=version)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(pulled).decode())
    else:
        typer.echo(f"{pulled.name} {pulled.version}: {pulled.status}, {pulled.size_bytes:,} bytes, from {checkpoint}")
