"""Learning from replayed steps: it learns, goes on bit by bit, ends when it is told to, and says no."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, ConfigError, IntegrityError, InvalidInput, StageFailed
from headrace.rl.algorithms.off_policy import env_actions
from headrace.rl.envs import Box

from .conftest import config, rows_of, run_of

LEARNERS: list[tuple[str, dict[str, Any]]] = [
    ("dqn", {"n_step": 3, "dueling": True, "prioritised": True, "learning_starts": 64, "target_every": 10}),
    ("sac", {"learning_starts": 64, "batch": 32, "prioritised": True}),
]
PLACES = {"dqn": "headrace/CartPole-v1", "sac": "headrace/Pendulum-v1"}


@pytest.mark.parametrize(("algo", "learner"), LEARNERS, ids=["dqn", "sac"])
def test_going_on_gives_the_bits_of_a_run_without_a_break(algo: str, learner: dict[str, Any], tmp_path: Path) -> None:
    settings = config(algo, {"normalise_obs": True}, **learner)
    whole, first = (run_of(PLACES[algo], settings) for _ in range(2))
    for _ in range(4):
        whole.update(0.25)
        first.update(0.25)
    first.save_memory(tmp_path / "last.replay")
    kept = first.state()
    first.close()
    second = run_of(PLACES[algo], settings)
    second.load_memory(tmp_path / "last.replay")
    second.load(kept)
    for _ in range(3):
        one, other = whole.update(0.5), second.update(0.5)
        assert one.losses == other.losses
        np.testing.assert_array_equal(one.stats.returns, other.stats.returns)
    left, right = whole.state(), second.state()
    assert left.facts == right.facts
    for name, array in left.arrays.items():
        np.testing.assert_array_equal(array, right.arrays[name], err_msg=name)
    for name, array in rows_of(whole).items():
        np.testing.assert_array_equal(array, rows_of(second)[name])
    assert whole.evaluate(5, 3).returns.tolist() == second.evaluate(5, 3).returns.tolist()
    whole.close()
    second.close()


def test_evaluation_changes_nothing() -> None:
    settings = config("dqn", learning_starts=64)
    judged, left_alone = (run_of(PLACES["dqn"], settings) for _ in range(2))
    for _ in range(4):
        judged.update(0.0)
        left_alone.update(0.0)
        judged.evaluate(3, 7)
    for name, array in judged.state().arrays.items():
        np.testing.assert_array_equal(array, left_alone.state().arrays[name])


def test_it_learns_as_often_as_it_is_told_to() -> None:
    run = run_of(PLACES["dqn"], config("dqn", learning_starts=100, train_every=6, updates=3))
    for update in range(1, 5):
        run.update(0.0)
        assert run.learner.updates == max(0, update * 64 - 100) // 6 * 3
    run.close()


@pytest.mark.parametrize(
    ("env", "algo", "most_updates", "changes", "learner"),
    [
        ("headrace/Bandit-v0", "dqn", 20, {}, {"learning_starts": 64, "epsilon_steps": 500, "train_every": 2}),
        ("headrace/Identity-v0", "dqn", 40, {}, {"gamma": 0.5, "epsilon_steps": 1000, "learning_starts": 200}),
        (
            "headrace/Identity-v0",
            "dqn",
            40,
            {},
            {
                "gamma": 0.5, "epsilon_steps": 1000, "learning_starts": 200, "dueling": True, "prioritised": True,
                "n_step": 2,
            },
        ),
        (
            "headrace/Squared-v0",
            "sac",
            60,
            {},
            {
                "gamma": 0.5, "learning_rate": 3e-3, "actor_learning_rate": 3e-3, "temperature_learning_rate": 3e-3,
                "batch": 64, "train_every": 2, "learning_starts": 200, "tau": 0.05,
            },
        ),
    ],
    ids=["bandit", "identity", "identity-all", "squared"],
)  # fmt: skip
def test_it_learns(env: str, algo: str, most_updates: int, changes: dict[str, Any], learner: dict[str, Any]) -> None:
    run = run_of(env, config(algo, changes, **learner))
    threshold = run.env_spec.reward_threshold
    assert threshold is not None
    for _ in range(most_updates):
        run.update(0.0)
        if run.learner.updates and (best := run.evaluate(100, 1 << 62).mean_return) >= threshold:
            break
    assert best >= threshold
    run.close()


def test_a_context_ends_between_two_steps() -> None:
    run = run_of(PLACES["dqn"], config("dqn", {"n_steps": 1000}))
    ctx = Context()

    class Ending:
        """Environments that end the context with their tenth step."""

        def __init__(self, source: Any) -> None:
            self.source, self.steps = source, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.source, name)

        def step(self, actions: Any, ctx_: Any = None) -> Any:
            self.steps += 1
            if self.steps == 10:
                ctx.cancel()
            return self.source.step(actions, None)

    run.source = Ending(run.source)
    assert run.update(0.0, ctx).steps == 40
    with pytest.raises(Cancelled):
        run.update(0.0, ctx)
    run.close()


def test_a_loss_that_is_no_number_is_told_with_its_step() -> None:
    run = run_of(PLACES["dqn"], config("dqn", learning_starts=64, n_step=1))
    run.update(0.0)
    run.learner.network.advantage.bias.data.fill_(math.nan)
    with pytest.raises(StageFailed, match=r"dqn: loss/q is nan in update 1, after 68 steps"):
        run.update(0.0)
    run.close()


@pytest.mark.parametrize(
    ("env", "algo", "changes", "message"),
    [
        ("headrace/Pendulum-v1", "dqn", {}, r"algo: dqn chooses one of n actions, headrace/Pendulum-v1 takes Box"),
        ("headrace/IdentityMulti-v0", "dqn", {}, r"algo: dqn chooses one of n actions, .* takes MultiDiscrete"),
        (
            "headrace/CartPole-v1",
            "sac",
            {},
            r"algo: sac needs actions in a bounded box, headrace/CartPole-v1 takes Disc",
        ),
        (
            "headrace/CartPole-v1",
            "dqn",
            {"normalise_reward": True},
            r"normalise_reward: dqn learns from rewards as they",
        ),
    ],
)
def test_what_cannot_work_is_refused(env: str, algo: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_of(env, config(algo, changes))


def test_a_memory_of_another_kind_is_refused(tmp_path: Path) -> None:
    small, large = run_of(PLACES["dqn"], config("dqn", replay=100)), run_of(PLACES["dqn"], config("dqn", replay=200))
    small.update(0.0)
    small.save_memory(tmp_path / "small.replay")
    with pytest.raises(InvalidInput, match=r"small\.replay: expected 200 rows of .*, got 100 of"):
        large.load_memory(tmp_path / "small.replay")
    content = (tmp_path / "small.replay").read_bytes()
    (tmp_path / "small.replay").write_bytes(content[:-100])
    with pytest.raises(IntegrityError, match=r"small\.replay"):
        small.load_memory(tmp_path / "small.replay")


def test_actions_lie_between_the_bounds_of_the_box() -> None:
    class Spec:
        action = Box([-2.0, 0.0], [2.0, 10.0])

    actions = np.array([[-1, -1], [0, 0], [1, 1], [0.5, -0.5]], np.float32)
    right = [[-2, 0], [0, 5], [2, 10], [1, 2.5]]
    np.testing.assert_allclose(env_actions(Spec, actions), right)  # type: ignore[arg-type]


def test_it_balances_a_pole_three_times_as_long_as_chance() -> None:
    """Random actions last for 22 steps; whole runs to 475 are those of bench/rl/recipes.py."""
    run = run_of(PLACES["dqn"], config("dqn", {"n_envs": 8, "n_steps": 128}, dueling=True, epsilon_steps=5_000))
    best = 0.0
    for update in range(1, 11):
        run.update(0.0)
        if update >= 5:
            best = max(best, run.evaluate(50, 0).mean_return)
        if best >= 60:
            break
    assert best >= 60
    run.close()
