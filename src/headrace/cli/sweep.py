"""`headrace sweep`: an environment and what to vary in, trials and the best settings out."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.train import Algo, Env, File, Sets, interruptible
from headrace.core.context import Context
from headrace.errors import StageFailed

if TYPE_CHECKING:
    from headrace.rl.sweep import Trial

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace sweep headrace/CartPole-v1 --trials 20 --vary ppo.learning_rate=log:1e-4..1e-2 --vary "hidden=[32,32]|[64,64]"

headrace sweep headrace/Acrobot-v1 --out runs/search --trials 40 --vary n_steps=int:16..256 --prune

headrace train --config runs/search/best.toml"""


def command(
    env: Env = None,
    config: File = None,
    sets: Sets = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=RANGE", help="LOW..HIGH, log:LOW..HIGH, int:LOW..HIGH or A|B; may be given often."),
    ] = None,
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="In the study in all, with those of before.")] = 20,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the study; one that is there is gone on with.")
    ] = None,
    algo: Algo = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of each trial.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of what is proposed.")] = 0,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Trials at a time; with --set threads=1 they share the CPUs best.")
    ] = 1,
    prune: Annotated[bool, typer.Option(help="End trials that lag behind the median of the others.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON line for each trial, and one at the end.")] = False,
) -> None:
    """Search for the settings with which training reaches the best evaluation.

    Every trial is an ordinary run. Ctrl-C ends the search and keeps what is done; the same command goes on with it. It
    fails where no trial was completed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from headrace.rl.ranges import parse_range
    from headrace.rl.sweep import sweep

    ranges = [parse_range(text) for text in vary or []]
    folder = out or Path("runs") / f"sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    columns = (
        TextColumn("trials"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    ctx, best, console = Context(), -math.inf, Console(stderr=True)
    with interruptible(ctx), Progress(*columns, console=console, disable=as_json or not console.is_terminal) as bar:
        task = bar.add_task("", total=trials)

        def told(trial: Trial, ended: int) -> None:
            nonlocal best
            best = max(best, trial.value) if trial.state == "complete" else best
            bar.update(task, completed=ended, description=f"best {best:.1f}" if best > -math.inf else "")
            if as_json:
                print(json.dumps(_facts(trial)), flush=True)

        found = sweep(
            sets or [],
            ranges,
            folder,
            trials=trials,
            jobs=jobs,
            config=config,
            seed=seed,
            prune=prune,
            told=told,
            ctx=ctx,
            env=env,
            algo=algo,
            total_steps=steps,
        )
    completed = bool(found) and found[0].state == "complete"
    if as_json:
        told_best = {"best": _facts(found[0]), "config": str(folder / "best.toml")} if completed else {"best": None}
        print(json.dumps({"study": str(folder), "trials": len(found), **told_best}))
    else:
        for trial in found[:10]:
            settings = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
            result = f"{trial.value:.2f}" if trial.state == "complete" else trial.state
            print(f"trial {trial.number:3}  {result:>9}  {settings}{f': {trial.error}' if trial.error else ''}")
        if completed:
            print(f"the best settings: {folder / 'best.toml'}")
    if not completed and ctx.error is None:
        raise StageFailed("sweep", f"none of {len(found)} trials was completed")


def _facts(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "state": trial.state,
        "best_return": None if math.isnan(trial.value) else round(trial.value, 3),
        "settings": trial.settings,
        "error": trial.error or None,
    }
