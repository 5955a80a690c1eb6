"""Recipes: what `headrace train --config examples/rl/NAME.toml` reaches, seed by seed.

    python bench/rl/recipes.py [NAME …] [--seeds 5] [--json]

Each row is a run: the mean return of 100 greedy episodes on held-out seeds at every evaluation, and the steps of the
first evaluation that reached the target. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import ROOT, progress, table
from headrace.rl import load_config, train
from headrace.rl.train import Report

FOLDER = ROOT / "examples" / "rl"
TARGETS = {
    "headrace/CartPole-v1": 475.0,
    "headrace/Acrobot-v1": -100.0,
    "headrace/Pendulum-v1": -200.0,
    "headrace/MountainCarContinuous-v0": 90.0,
    "headrace/MountainCar-v0": -110.0,
    "LunarLander-v3": 200.0,
}
"""Where the environment has none of its own, or the recipe goes on beyond it."""


def run(recipe: Path, seed: int) -> dict[str, Any]:
    config = load_config(recipe, seed=seed, threads=1)
    curve: list[tuple[int, float]] = []

    def watch(report: Report) -> None:
        if report.eval_return is not None:
            curve.append((report.steps, report.eval_return))
            progress(f"{recipe.stem}, seed {seed}: {report.steps:,} steps, {report.eval_return:.1f}")

    result = train(config, watch=watch)
    target = TARGETS.get(config.env, config.target_return or 0.0)
    reached = next((steps for steps, value in curve if value >= target), None)
    return {
        "recipe": recipe.stem,
        "seed": seed,
        "target": target,
        "steps_to_target": reached,
        "steps": result.steps,
        "final_return": curve[-1][1],
        "best_return": result.best_return,
        "curve": curve,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all recipes in examples/rl")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    recipes = [FOLDER / f"{name}.toml" for name in args.names] or sorted(FOLDER.glob("*.toml"))
    runs = [run(recipe, seed) for recipe in recipes for seed in range(args.seeds)]
    if not args.json:
        rows = [
            [
                one["recipe"],
                str(one["seed"]),
                "-" if one["steps_to_target"] is None else f"{one['steps_to_target']:,}",
                f"{one['steps']:,}",
                f"{one['final_return']:.1f}",
            ]
            for one in runs
        ]
        print(table(["recipe", "seed", "steps to target", "steps", "return at the end"], rows))
    print(json.dumps({"runs": runs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
