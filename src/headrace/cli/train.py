"""`headrace train`: an environment in, a trained policy out, with a live view on the way."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._complete import algorithms, environments
from headrace.core.context import Context

if TYPE_CHECKING:
    from headrace.rl.metrics import TrainMetrics
    from headrace.rl.train import Report

__all__ = ["EPILOG", "Algo", "Env", "File", "Sets", "command", "interruptible"]

EPILOG = """[bold]Examples[/bold]

headrace train headrace/CartPole-v1

headrace train headrace/CartPole-v1 --set n_envs=512 --set ppo.learning_rate=1e-3 --out runs/fast

headrace train headrace/CartPole-v1 --out runs/fast --resume --steps 5_000_000

headrace train --config cartpole.toml --json | tail -1 | jq .best_return"""

Env = Annotated[
    str | None,
    typer.Argument(
        metavar="ENV", help="An id of Headrace's or Gymnasium's, or package.module:Class.", autocompletion=environments
    ),
]
Algo = Annotated[str | None, typer.Option(help="ppo, a2c, impala, dqn or sac.", autocompletion=algorithms)]
File = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML with the settings of TrainConfig.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given many times.")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the run. Default: runs/ENV-TIME.")]


def command(
    env: Env = None,
    config: File = None,
    sets: Sets = None,
    out: Out = None,
    algo: Algo = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of all environments together.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed gives the same run.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the folder's last checkpoint.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Show /metrics, /healthz and /profile on that port of localhost."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON line after each evaluation and at the end.")] = False,
) -> None:
    """Train a policy until it reaches its environment's threshold or the steps are done.

    Ctrl-C or SIGTERM ends it after a last checkpoint.
    """
    from headrace.rl.config import load_config
    from headrace.rl.train import CURVE, train

    settings = load_config(config, sets or [], env=env, algo=algo, total_steps=steps, seed=seed)
    folder = out or Path("runs") / f"{settings.env.split('/')[-1].split(':')[-1]}-{time.strftime('%Y%m%d-%H%M%S')}"
    ctx = Context()
    with _shown(metrics) as counted, interruptible(ctx), _view(settings.total_steps, as_json) as watch:
        result = train(settings, folder, resume=resume, watch=watch, metrics=counted, ctx=ctx)
    best = None if math.isnan(result.best_return) else round(result.best_return, 3)
    curve = folder / CURVE
    if as_json:
        facts = {name: getattr(result, name) for name in ("steps", "episodes", "updates", "solved")}
        facts |= {"seconds": round(result.seconds, 3), "best_return": best, "run": str(folder)}
        print(json.dumps({**facts, "curve": str(curve) if curve.exists() else None}))
        return
    ended = "solved" if result.solved else "interrupted" if ctx.error is not None else "not solved"
    print(
        f"{ended} after {result.steps:,} steps, {result.episodes:,} episodes, {result.seconds:.1f} s: "
        f"best evaluation {best}; in {folder}"
    )
    if curve.exists():
        print(f"learning curve: {curve}")


@contextmanager
def _shown(port: int | None) -> Iterator[TrainMetrics | None]:
    """Metrics that a port shows, if one is wanted."""
    if port is None:
        yield None
        return
    from headrace.core.telemetry import Registry
    from headrace.rl.metrics import TrainMetrics
    from headrace.rl.monitor import monitored

    metrics = TrainMetrics(Registry())
    with monitored(metrics, port):
        yield metrics


@contextmanager
def interruptible(ctx: Context) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the context; a second Ctrl-C ends the program."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: Any) -> None:
        ctx.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _view(total_steps: int, as_json: bool) -> Iterator[Any]:
    """What is told after an update: JSON lines, or a table that is drawn anew a few times a second."""
    if as_json:
        yield _print_evaluation
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=8, transient=False) as live:

        def watch(report: Report) -> None:
            live.update(_table(report, total_steps))

        yield watch


def _print_evaluation(report: Report) -> None:
    if report.eval_return is not None:
        numbers = {name: value for name, value in report.numbers().items() if math.isfinite(value)}
        print(json.dumps({"updates": report.updates, "steps": report.steps, **numbers}), flush=True)


def _table(report: Report, total_steps: int) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row("steps", f"{report.steps:,} of {total_steps:,}", "return", f"{report.mean_return:.1f}")
    table.add_row("episodes", f"{report.episodes:,}", "length", f"{report.mean_length:.1f}")
    table.add_row("steps/s", f"{report.steps_s:,.0f}", "episodes/s", f"{report.episodes_s:,.0f}")
    table.add_row("collect", f"{report.collect_s * 1e3:.1f} ms", "learn", f"{report.learn_s * 1e3:.1f} ms")
    losses = [(name.replace("_", " "), f"{value:.4g}") for name, value in report.losses.items()]
    for left, right in zip(losses[::2], [*losses[1::2], ("lag", f"{report.lag}")], strict=False):
        table.add_row(*left, *right)
    return table
