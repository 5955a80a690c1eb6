"""Batches: nothing depends on how they are split, bad actions are refused by name, arrays are views of one state."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.envs.plain import sample_action
from headrace.rl.envs.random import new_stream

CARTPOLE, PENDULUM = "headrace/CartPole-v1", "headrace/Pendulum-v1"


def run(env, n: int, threads: int, autoreset: Autoreset, steps: int, seed: int = 3):
    """Everything a batch gives over some steps, as one array of bytes; its actions do not depend on how it is split."""
    batch = BatchEnv(env, n, threads=threads, autoreset=autoreset, seed=seed)
    assert batch.threads == threads
    rng, seen = np.random.default_rng(0), [batch.reset().copy()]
    for _ in range(steps):
        step = batch.step(rng.integers(env.spec.action.n, size=n))
        seen += [array.copy() for array in step]
        if autoreset is Autoreset.SAME_STEP:
            ended = step.terminated | step.truncated
            seen.append(batch.final_obs[ended])
    return b"".join(array.tobytes() for array in seen) + batch.state.tobytes()


@pytest.mark.parametrize("name", [CARTPOLE, "headrace/FourRooms-v0", "headrace/ConnectFourSolo-v0"])
@pytest.mark.parametrize("autoreset", list(Autoreset))
def test_threads_change_nothing(name, autoreset, compiled):
    env, n = compiled(name), 777
    alone = run(env, n, 1, autoreset, 70)
    for threads in (2, 5):
        assert run(env, n, threads, autoreset, 70) == alone
    assert run(env, n, 1, autoreset, 70, seed=4) != alone


@pytest.mark.parametrize("name", [CARTPOLE, "headrace/FourRooms-v0"])
def test_the_size_of_the_batch_changes_nothing(name, compiled):
    """An environment is its number: it lives the same life among 3 and among 700, in whole blocks and at their ends."""
    env = compiled(name)
    for size in (1, 63, 64, 65, 700):
        small, large = BatchEnv(env, size, seed=9), BatchEnv(env, 700, seed=9)
        small.reset()
        large.reset()
        rng = np.random.default_rng(1)
        for _ in range(40):
            actions = rng.integers(env.spec.action.n, size=700)
            a, b = small.step(actions[:size]), large.step(actions)
            for mine, theirs in zip(a, b, strict=True):
                np.testing.assert_array_equal(mine, theirs[:size])


def test_episodes_differ_and_come_again(compiled):
    batch = BatchEnv(compiled(CARTPOLE), 8, seed=1)
    first = batch.reset().copy()
    second = batch.restart(np.ones(8, np.bool_)).copy()
    assert len({row.tobytes() for row in np.concatenate([first, second])}) == 16
    np.testing.assert_array_equal(batch.reset(), first)
    assert not np.array_equal(batch.reset(2), first)
    np.testing.assert_array_equal(batch.reset(1), first)


def test_restart_begins_the_chosen_and_leaves_the_others(compiled):
    batch = BatchEnv(compiled(CARTPOLE), 5, seed=1)
    before = batch.reset().copy()
    mask = np.array([True, False, False, True, False])
    after = batch.restart(mask)
    assert (after[~mask] == before[~mask]).all()
    assert (after[mask] != before[mask]).any(axis=1).all()
    assert batch.fields()["_episode"].tolist() == [1, 0, 0, 1, 0]


def test_a_state_put_back_goes_on_the_same(compiled):
    """The block of state is all there is: a snapshot of it resumes bit for bit."""
    env = compiled("headrace/FourRooms-v0")
    batch, actions = BatchEnv(env, 20, seed=5), np.random.default_rng(0).integers(4, size=(60, 20))
    batch.reset()
    for row in actions[:30]:
        batch.step(row)
    saved, later = batch.state.copy(), [tuple(a.copy() for a in batch.step(row)) for row in actions[30:]]
    other = BatchEnv(env, 20, seed=5)
    other.reset()
    other.state[:] = saved
    for row, expected in zip(actions[30:], later, strict=True):
        for mine, theirs in zip(other.step(row), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_fields_are_views(compiled):
    batch = BatchEnv(compiled(CARTPOLE), 2, autoreset=Autoreset.DISABLED)
    batch.reset()
    batch.fields()["x"][1] = 2.5
    step = batch.step([0, 0])
    assert step.terminated.tolist() == [False, True]
    assert step.obs[1, 0] == pytest.approx(2.5, abs=0.1)


def test_arrays_are_written_in_place(compiled):
    batch = BatchEnv(compiled(CARTPOLE), 2)
    first, second = batch.reset(), batch.step([0, 1]).obs
    assert first is second


BAD_ACTIONS = [
    (CARTPOLE, [0, 1, 2], r"action of environment 2: expected 0 … 1, got 2"),
    (CARTPOLE, [0, -1, 1], r"action of environment 1: expected 0 … 1, got -1"),
    (CARTPOLE, np.array([0, 2**33, 1]), r"environment 1"),
    (CARTPOLE, [0, 1], r"expected the shape \[3\], got \[2\]"),
    (CARTPOLE, [[0], [1], [1]], r"expected the shape \[3\], got \[3, 1\]"),
    (CARTPOLE, [0.0, 1.0, 1.0], r"expected whole numbers, got float64"),
    (CARTPOLE, [True, False, True], r"expected whole numbers, got bool"),
    (CARTPOLE, ["a", "b", "c"], r"expected whole numbers"),
    (CARTPOLE, [[0], [1, 2], []], r"actions: "),
    (PENDULUM, [[0.0], [np.nan], [1.0]], r"action\[0\] of environment 1: expected -2 … 2, got nan"),
    (PENDULUM, [[0.0], [0.5], [2.5]], r"action\[0\] of environment 2: expected -2 … 2, got 2.5"),
    (PENDULUM, [0.0, 0.5, 1.0], r"expected the shape \[3, 1\], got \[3\]"),
    (PENDULUM, [[1j], [0], [0]], r"expected floats, got complex128"),
    ("headrace/IdentityMulti-v0", [[0, 0], [2, 1], [2, 2]], r"action\[1\] of environment 2: expected 0 … 1, got 2"),
    ("headrace/IdentityMulti-v0", [0, 1, 2], r"expected the shape \[3, 2\]"),
]


@pytest.mark.parametrize(("name", "actions", "said"), BAD_ACTIONS)
def test_bad_actions_are_refused_and_nothing_happens(name, actions, said, compiled):
    batch = BatchEnv(compiled(name), 3)
    batch.reset()
    before = batch.state.copy()
    with pytest.raises(InvalidInput, match=said):
        batch.step(actions)
    np.testing.assert_array_equal(batch.state, before)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_whole_numbers_of_any_width_are_actions(dtype, compiled):
    batch = BatchEnv(compiled(CARTPOLE), 3)
    batch.reset()
    batch.step(np.array([0, 1, 0], dtype))
    assert batch.fields()["x_dot"].shape == (3,)


def test_steps_before_a_reset_and_bad_arguments_are_refused(compiled):
    env = compiled(CARTPOLE)
    batch = BatchEnv(env, 3)
    with pytest.raises(InvalidInput, match="reset must be called before step"):
        batch.step([0, 0, 0])
    with pytest.raises(InvalidInput, match="reset must be called before restart"):
        batch.restart([True] * 3)
    batch.reset()
    for mask in ([True], [1, 0, 1], [[True, False, True]]):
        with pytest.raises(InvalidInput, match="reset mask"):
            batch.restart(mask)
    for wrong in (
        {"n": 0},
        {"n": 3, "threads": 0},
        {"n": 3, "seed": -1},
        {"n": 3, "seed": 2**64},
        {"n": 3, "seed": 0.5},
    ):
        with pytest.raises(InvalidInput):
            BatchEnv(env, **wrong)


def test_sampled_actions_of_every_kind_are_accepted(compiled):
    stream = new_stream(1)
    for name in (CARTPOLE, PENDULUM, "headrace/IdentityMulti-v0"):
        batch = BatchEnv(compiled(name), 4)
        batch.reset()
        batch.step(np.array([sample_action(batch.env.definition, stream) for _ in range(4)]))
