"""What Gymnasium's own vector environments give, to the bit; and what they do not have."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headrace.errors import DeadlineExceeded, InvalidInput, StageFailed, Unavailable
from headrace.rl.workers.vector import ProcessVectorEnv

from .conftest import Counter


def same(one, other):
    """Whether two results are equal in value, structure and dtype."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if one is None or other is None:
        return one is other
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype == object and a.shape:
        return b.dtype == object and a.shape == b.shape and all(map(same, a.ravel(), b.ravel()))
    return a.dtype == b.dtype and np.array_equal(a, b)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_steps_are_those_of_gymnasium(mode, name):
    fns = [partial(gymnasium.make, name, max_episode_steps=20 + i) for i in range(3)]
    theirs = SyncVectorEnv(fns, autoreset_mode=mode)
    theirs.action_space.seed(0)
    with_ours = ProcessVectorEnv(fns, workers=2, autoreset_mode=mode)
    try:
        assert with_ours.metadata["autoreset_mode"] is mode
        assert with_ours.action_space == theirs.action_space
        assert with_ours.observation_space == theirs.observation_space
        assert same(with_ours.reset(seed=5), theirs.reset(seed=5))
        for step in range(80):
            action = theirs.action_space.sample()
            expected, got = theirs.step(action), with_ours.step(action)
            assert same(got, expected), step
            ended = expected[2] | expected[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                options = {"reset_mask": ended}
                assert same(with_ours.reset(options=dict(options)), theirs.reset(options=dict(options)))
    finally:
        with_ours.close()
        theirs.close()


def test_a_list_of_seeds_and_options_reach_the_environments():
    env = ProcessVectorEnv([partial(Counter, i) for i in range(3)], workers=2)
    try:
        obs, infos = env.reset(seed=[7, None, 9], options={"colour": "red"})
        assert obs[:, 0].tolist() == [0, 1, 2]
        assert infos["seed"].tolist() == ["7", "None", "9"]
        assert list(infos["options"]["colour"]) == ["red"] * 3
        with pytest.raises(InvalidInput, match="expected 3"):
            env.reset(seed=[1, 2])
        with pytest.raises(InvalidInput, match=r"reset_mask: expected bool\[3\]"):
            env.reset(options={"reset_mask": np.zeros(3, bool)})
    finally:
        env.close()


def test_views_without_copy_and_copies_with_it():
    env = ProcessVectorEnv([Counter] * 2, workers=1, copy=False)
    try:
        first, _ = env.reset()
        env.step([0, 0])
        assert first[:, 2].tolist() == [1, 1]
    finally:
        env.close()
    with ProcessVectorEnv([Counter] * 2, workers=1) as env:
        first, _ = env.reset()
        rewards = env.step([0, 0])[1]
        env.step([0, 0])
        assert first[:, 2].tolist() == [0, 0]
        assert rewards.tolist() == [1.0, 1.0]


def test_calls_attributes_and_pictures():
    with ProcessVectorEnv([partial(Counter, i) for i in range(3)], workers=2) as env:
        env.reset()
        assert env.get_attr("number") == (0, 1, 2)
        env.set_attr("number", [4, 5, 6])
        assert env.call("get_wrapper_attr", "number") == (4, 5, 6)
        assert [picture[0, 0, 0] for picture in env.render()] == [4, 5, 6]
        env.set_attr("payload", b"x" * 300_000)  # longer than the ring
        assert [len(p) for p in env.get_attr("payload")] == [300_000] * 3
        with pytest.raises(StageFailed, match=r"environment 0.*nothing") as caught:
            env.call("nothing")
        assert "AttributeError" in str(caught.value.__cause__)
        env.step([0, 0, 0])


def test_whoever_is_ready_first_comes_first():
    """A slow environment holds up nobody but itself; every step of everybody arrives once, in its own order."""
    delays = [0.03, 0.0, 0.0]
    with ProcessVectorEnv(
        [partial(Counter, i, delay_s=d, length=10**6) for i, d in enumerate(delays)], workers=3
    ) as env:
        env.async_reset(seed=1)
        seen = {i: [] for i in range(3)}
        outstanding, wanted = 3, 300
        while outstanding or wanted > 0:
            ready = env.recv(1, timeout_s=20.0)
            outstanding -= len(ready.ids)
            for row, i in enumerate(ready.ids.tolist()):
                assert ready.obs[row, 0] == i
                seen[i].append(int(ready.obs[row, 2]))
            if wanted > 0:
                env.send(np.zeros(len(ready.ids), int), ready.ids)
                outstanding += len(ready.ids)
                wanted -= len(ready.ids)
        assert all(steps == list(range(len(steps))) for steps in seen.values())
        assert len(seen[0]) < len(seen[1])
        assert len(seen[0]) < len(seen[2])


def test_some_environments_of_one_process():
    with ProcessVectorEnv([partial(Counter, i) for i in range(6)], workers=2) as env:
        env.reset()
        env.send([1, 2], [4, 1])
        with pytest.raises(InvalidInput, match=r"\[4\] are busy"):
            env.send([0, 0], [4, 5])
        with pytest.raises(InvalidInput, match="busy"):
            env.step([0] * 6)
        env.send([0], [5])
        ready = env.recv(3)
        assert sorted(ready.ids.tolist()) == [1, 4, 5]
        assert ready.obs[:, 2].tolist() == [1, 1, 1]
        assert env.pool.busy == 0
        with pytest.raises(InvalidInput, match="at most 0"):
            env.recv(1)
        for ids in ([0, 0], [6], [-1], [0.5]):
            with pytest.raises(InvalidInput, match="different numbers"):
                env.send([0] * len(ids), ids)


def test_a_wait_in_vain_loses_nothing():
    with ProcessVectorEnv([partial(Counter, delay_s=0.2)], workers=1) as env:
        env.reset()
        env.send([0])
        with pytest.raises(DeadlineExceeded, match="0 of 1"):
            env.recv(1, timeout_s=0.01)
        assert env.recv(1).obs[0, 2] == 1
        env.send([0])
        obs, _ = env.reset()  # waits for the step and throws it away
        assert obs[0, 2] == 0
        assert obs[0, 1] == 2


@pytest.mark.parametrize(
    ("actions", "told"),
    [
        ([0, 1], r"expected the shape \[3\], got \[2\]"),
        ([0.0, 1.0, 1.0], "expected whole numbers, got float64"),
        ([0, 1, 3], "environment 2: expected 0 … 2, got 3"),
        ([0, -1, 0], "environment 1: expected 0 … 2, got -1"),
        ([[0], [1, 2], 3], "actions"),
    ],
)
def test_bad_actions_are_told(shared_counters, actions, told):
    with pytest.raises(InvalidInput, match=told):
        shared_counters.step(actions)
    before = shared_counters.pool.board.lengths.copy()
    shared_counters.step([0, 0, 0])
    assert (shared_counters.pool.board.lengths != before).any()


@pytest.fixture(scope="module")
def shared_counters():
    with ProcessVectorEnv([Counter] * 3, workers=1) as env:
        env.reset()
        yield env


def test_floats_outside_a_box_are_told():
    with ProcessVectorEnv.make("Pendulum-v1", 2, workers=1) as env:
        env.reset(seed=0)
        with pytest.raises(InvalidInput, match=r"action\[0\] of environment 1: expected -2 … 2, got nan"):
            env.step(np.array([[0.0], [np.nan]], np.float32))
        with pytest.raises(InvalidInput, match=r"got 2\.5"):
            env.step(np.array([[2.5], [0.0]], np.float32))


def test_disabled_autoreset_wants_a_reset():
    with ProcessVectorEnv([partial(Counter, length=1)] * 2, workers=1, autoreset_mode="Disabled") as env:
        env.reset()
        env.step([0, 0])
        with pytest.raises(InvalidInput, match="environment 0 has ended"):
            env.step([0, 0])


def test_bad_settings_and_environments_are_refused():
    for options, told in (
        ({"workers": 3}, "expected 1 … 2"),
        ({"workers": 0}, "expected 1 … 2"),
        ({"autoreset_mode": "sometimes"}, "autoreset_mode"),
        ({"step_timeout": 1}, "unknown settings step_timeout"),
        ({"step_timeout_s": 0}, "step_timeout_s"),
        ({"bad_values": "ignore"}, "expected one of stop, drop, clip"),
    ):
        with pytest.raises(InvalidInput, match=told):
            ProcessVectorEnv([Counter] * 2, **options)
    with pytest.raises(InvalidInput, match="at least one"):
        ProcessVectorEnv([])

    def broken():
        raise OSError("no such simulator")

    with pytest.raises(StageFailed, match=r"environment 1.*no such simulator") as caught:
        ProcessVectorEnv([Counter, broken], workers=1)
    assert "in broken" in str(caught.value.__cause__)
    with pytest.raises(StageFailed, match=r"environment 1.*all must have the spaces"):
        ProcessVectorEnv([Counter, partial(gymnasium.make, "CartPole-v1")], workers=2)


def test_after_close_there_is_an_error_and_no_second_close():
    env = ProcessVectorEnv([Counter], workers=1)
    env.reset()
    env.close()
    env.close()
    with pytest.raises(Unavailable, match="closed"):
        env.step([0])


def test_environments_are_closed_in_order(tmp_path):
    env = ProcessVectorEnv([Counter] * 2, workers=2)
    env.reset()
    env.set_attr("closed_file", [tmp_path / "a", tmp_path / "b"])
    env.close(timeout=20.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
