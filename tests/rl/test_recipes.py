"""What is shipped to learn by does learn, and what should not learn does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.rl.config import load_config
from headrace.rl.train import train


@pytest.mark.parametrize(
    ("name", "target"), [("ppo-cartpole", 475), ("ppo-acrobot", -100), ("ppo-mountain-car-continuous", 90)]
)
def test_a_recipe_reaches_its_threshold(checkout: Path, name: str, target: float) -> None:
    config = load_config(checkout / "examples" / "rl" / f"{name}.toml")
    result = train(config)
    assert result.solved
    assert result.best_return >= target


def test_pendulum_swings_up(checkout: Path) -> None:
    config = load_config(checkout / "examples" / "rl" / "ppo-pendulum.toml", ["target_return=-200"], seed=2)
    assert train(config).best_return >= -200


def test_nothing_is_learnt_where_chance_never_meets_a_reward(checkout: Path) -> None:
    """Plain PPO in MountainCar: a return above -200 would mean that something leaks."""
    config = load_config(checkout / "examples" / "rl" / "ppo-mountain-car.toml", total_steps=100_000)
    result = train(config)
    assert not result.solved
    assert result.best_return == -200


def test_every_recipe_is_sound(checkout: Path) -> None:
    recipes = sorted((checkout / "examples" / "rl").glob("*.toml"))
    assert len(recipes) >= 8
    for recipe in recipes:
        config = load_config(recipe)
        assert config.learner is not None
        assert (
            f"headrace train --config examples/rl/{recipe.name}" in recipe.read_text() or "mountain-car" in recipe.name
        )
