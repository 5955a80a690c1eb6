"""`headrace curve`: training runs in, a picture of their learning curves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli._complete import runs as complete_runs
from headrace.errors import ConfigError, LoadFailed, NotFound, Unavailable

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace curve runs/fast --out curve.png

headrace curve runs/ppo-0 runs/ppo-1 runs/ppo-2 runs/a2c-0 --out both.png --evaluation"""


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.", autocompletion=complete_runs)
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.png", help="Where the picture goes.")],
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Draw evaluations instead of the mean of the last 100 episodes.")
    ] = False,
    title: Annotated[str | None, typer.Option(help="Default: the environment.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw what runs reached over their steps, also while they go on.

    Runs that differ by the seed alone are one curve: their mean, in a band from the lowest to the highest.
    """
    from headrace.rl.curve import EPISODES, EVALUATION, Curve, draw_curves, read_history
    from headrace.store.durable import replace_file

    if out.suffix.lower() != ".png":
        raise ConfigError(f"--out {out}: expected a name that ends in .png")
    what = EVALUATION if evaluation else EPISODES
    groups: dict[str, list[Path]] = {}
    envs = set()
    for run in runs:
        config = _config(run)
        envs.add(str(config.get("env")))
        groups.setdefault(json.dumps({**config, "seed": None}, sort_keys=True), []).append(run)
    curves = []
    for group in groups.values():
        label = group[0].resolve().name + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        found = [curve for run in group for curve in read_history(run).curves() if curve.label == what]
        curves.append(Curve(label, [points for curve in found for points in curve.runs]))
    picture = draw_curves(curves, title=", ".join(sorted(envs)) if title is None else title)
    try:
        replace_file(out, picture)
    except OSError as error:
        raise Unavailable(f"{out}: cannot be written: {error.strerror}") from error
    if as_json:
        told = [{"label": curve.label, "runs": len(curve.runs)} for curve in curves]
        print(json.dumps({"out": str(out), "what": what, "curves": told}))
    else:
        print(f"{out}: {', '.join(curve.label for curve in curves)}")


def _config(run: Path) -> dict[str, Any]:
    path = run / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise NotFound(f"{run}: expected the folder of a run, its config.json: {error.strerror}") from error
    except ValueError as error:
        raise LoadFailed(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise LoadFailed(f"{path}: expected the settings of a run")
    return config
