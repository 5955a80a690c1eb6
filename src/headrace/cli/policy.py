"""`headrace eval policy`: a training run in, how well its policy does out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli._complete import runs

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace eval policy runs/fast

headrace eval policy runs/fast/last.ckpt --episodes 1000 --seed 7 --json | jq .mean_return"""


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or one of its checkpoints.", autocompletion=runs)
    ],
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Greedy episodes.")] = 100,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The same seed gives the same episodes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How well the policy of a run does, always taking the action it thinks best, on seeds that training does not use.

    The best checkpoint of a folder is taken, else the last one.
    """
    from headrace.rl.saved import find_checkpoint, load_policy
    from headrace.rl.show import judge

    checkpoint = find_checkpoint(run)
    policy = load_policy(checkpoint)
    found = judge(policy, episodes, seed)
    returns, lengths = found.returns, found.lengths
    facts: dict[str, Any] = {
        "env": policy.config.env,
        "checkpoint": str(checkpoint),
        "episodes": len(returns),
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "std_length": float(lengths.std()),
        "min_length": int(lengths.min()),
        "max_length": int(lengths.max()),
        "threshold": policy.env_spec.reward_threshold,
    }
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{facts['env']}, {checkpoint}: {len(returns)} greedy episodes")
    for name in ("return", "length"):
        mean, std, least, most = (facts[f"{kind}_{name}"] for kind in ("mean", "std", "min", "max"))
        print(f"{name}  mean {mean:.2f}  std {std:.2f}  min {least:.2f}  max {most:.2f}")
    if facts["threshold"] is not None:
        reached = "reached" if facts["mean_return"] >= facts["threshold"] else "not reached"
        print(f"the threshold, {facts['threshold']:g}, is {reached}")
