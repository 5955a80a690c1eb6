"""n-step rows: what each field is filled with, the ends of episodes, steps that do not count, bad input."""

import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.rl.buffers import Field, NStep, ReplayBuffer

FIELDS = (
    Field("obs", (2,)),
    Field("action", (), np.int32),
    Field("reward"),
    Field("next_obs", (2,)),
    Field("discount"),
)


def step(t, terminated=False, truncated=False, **change):
    made = {
        "obs": np.full((1, 2), t, np.float32),
        "action": np.array([t * 10], np.int32),
        "reward": np.array([1.0], np.float32),
        "next_obs": np.full((1, 2), t + 1, np.float32),
        "terminated": np.array([terminated]),
        "truncated": np.array([truncated]),
    }
    return {**made, **change}


def rows(buffer):
    batch = buffer.gather(np.arange(len(buffer)))
    return [
        (int(batch["obs"][i, 0]), int(batch["action"][i]), float(batch["reward"][i]), int(batch["next_obs"][i, 0]),
         float(batch["discount"][i]))
        for i in range(len(batch))
    ]  # fmt: skip


def play(*steps, n=3, gamma=0.5):
    buffer = ReplayBuffer(FIELDS, 100)
    assembler = NStep(buffer, 1, n, gamma)
    pushed = [assembler.push(**one) for one in steps]
    assert sum(pushed) == len(buffer)
    return rows(buffer)


def test_a_chain_of_n_steps():
    assert play(*[step(t) for t in range(5)]) == [
        (0, 0, 1.75, 3, 0.125),
        (1, 10, 1.75, 4, 0.125),
        (2, 20, 1.75, 5, 0.125),
    ]
    assert play(step(0), step(1), n=1) == [(0, 0, 1.0, 1, 0.5), (1, 10, 1.0, 2, 0.5)]


def test_termination_cuts_every_open_chain_and_stops_the_bootstrap():
    assert play(step(0), step(1), step(2, terminated=True), step(3)) == [
        (0, 0, 1.75, 3, 0.0),
        (1, 10, 1.5, 3, 0.0),
        (2, 20, 1.0, 3, 0.0),
    ]


def test_truncation_cuts_every_open_chain_and_bootstraps_from_the_last_observation():
    last = np.full((1, 2), 77, np.float32)
    assert play(step(0), step(1, truncated=True, final_obs=last), step(2), step(3), step(4)) == [
        (0, 0, 1.5, 77, 0.25),
        (1, 10, 1.0, 77, 0.5),
        (2, 20, 1.75, 5, 0.125),
    ]
    both = play(step(0, terminated=True, truncated=True, final_obs=last))
    assert both == [(0, 0, 1.0, 77, 0.0)]


def test_a_step_that_was_a_reset_is_no_step():
    """Gymnasium's NEXT_STEP mode: the step after an end ignores its action and gives reward 0."""
    idle = np.array([False])
    assert play(step(0), step(1, truncated=True), step(2, active=idle), step(3), step(4), step(5)) == [
        (0, 0, 1.5, 2, 0.25),
        (1, 10, 1.0, 2, 0.5),
        (3, 30, 1.75, 6, 0.125),
    ]


def test_several_observations_and_their_last_ones():
    fields = [
        *FIELDS,
        Field("image", (3,), np.uint8),
        Field("next_image", (3,), np.uint8),
    ]
    buffer = ReplayBuffer(fields, 10)
    assembler = NStep(buffer, 2, 2, 1.0)
    two = {name: np.concatenate([array, array]) for name, array in step(0).items()}
    images = np.arange(6, dtype=np.uint8).reshape(2, 3)
    flags = {"terminated": [True, False], "truncated": np.zeros(2, np.uint8)}
    given = {**two, **flags, "image": images, "next_image": images + 10, "final_image": images + 20}
    assert assembler.push(**given) == 1
    assert assembler.push(**{**given, "terminated": [False, False]}) == 1
    batch = buffer.gather(np.arange(2))
    assert batch["image"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["next_image"].tolist() == [[20, 21, 22], [13, 14, 15]]


def test_rewards_may_be_a_column_of_something_wider():
    buffer = ReplayBuffer(FIELDS, 10)
    wide = np.array([[3.0, 9.0], [4.0, 9.0]], np.float32)
    assembler = NStep(buffer, 2, 1, 1.0)
    two = {name: np.concatenate([array, array]) for name, array in step(0).items()}
    assembler.push(**{**two, "reward": wide[:, 0]})
    assert buffer.gather(np.arange(2))["reward"].tolist() == [3.0, 4.0]


def test_a_discarded_stream_forgets_its_open_chains():
    buffer = ReplayBuffer(FIELDS, 10)
    assembler = NStep(buffer, 1, 3, 0.5)
    assembler.push(**step(0))
    assembler.push(**step(1))
    assembler.discard(0)
    for t in (5, 6, 7):
        assembler.push(**step(t))
    assert rows(buffer) == [(5, 50, 1.75, 8, 0.125)]
    with pytest.raises(InvalidInput, match=r"stream: expected 0\.\.0, got 1"):
        assembler.discard(1)


def test_a_reward_that_is_not_finite_names_its_stream_and_changes_nothing():
    buffer = ReplayBuffer(FIELDS, 10)
    assembler = NStep(buffer, 1, 2, 0.5)
    assembler.push(**step(0))
    with pytest.raises(InvalidInput, match="reward of stream 0"):
        assembler.push(**step(1, reward=np.array([np.nan], np.float32)))
    assembler.push(**step(1))
    assert rows(buffer) == [(0, 0, 1.5, 2, 0.25)]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"obs": np.zeros((2, 2), np.float32)}, "'obs': expected 1 rows"),
        ({"reward": np.zeros(1, np.complex64)}, "'reward'"),
        ({"terminated": np.zeros(2, bool)}, "terminated: expected a contiguous array of 1, got 2"),
        ({"truncated": 0.5}, "'truncated'"),
        ({"active": [True, True]}, "active: expected a contiguous array of 1"),
        ({"discount": np.zeros(1, np.float32)}, "filled in here"),
        ({"final_action": np.zeros(1)}, "there is no 'final_action'"),
        ({"final_obs": np.zeros((1, 3), np.float32)}, "'final_obs'"),
    ],
)
def test_steps_that_do_not_fit_are_named(change, match):
    buffer = ReplayBuffer(FIELDS, 10)
    assembler = NStep(buffer, 1, 2, 0.5)
    with pytest.raises(InvalidInput, match=match):
        assembler.push(**{**step(0), **change})
    short = step(0)
    del short["action"]
    with pytest.raises(InvalidInput, match="'action'"):
        assembler.push(**short)
    assert assembler.state()["counts"].tolist() == [0]


def without(name, *more):
    return [field for field in FIELDS if field.name != name] + list(more)


@pytest.mark.parametrize(
    ("fields", "settings", "match"),
    [
        (without("reward"), {}, "'reward'"),
        (without("discount"), {}, "'discount'"),
        (without("reward", Field("reward", (), np.float64)), {}, "'reward', float32"),
        (without("reward", Field("reward", (1,))), {}, "single numbers"),
        ([*FIELDS, Field("terminated", (), np.bool_)], {}, "'terminated'"),
        ([*FIELDS, Field("final_obs", (2,))], {}, "'final_obs'"),
        (FIELDS, {"n": 0}, "at least"),
        (FIELDS, {"streams": 0}, "at least"),
        (FIELDS, {"gamma": 1.5}, "gamma"),
        (FIELDS, {"n": 5000}, "1..1024"),
    ],
)
def test_fields_and_settings_that_cannot_be(fields, settings, match):
    buffer = ReplayBuffer(fields, 10)
    with pytest.raises(InvalidInput, match=match):
        NStep(buffer, **{"streams": 1, "n": 3, "gamma": 0.9, **settings})


def test_open_chains_are_saved_and_go_on():
    play_on = [step(t, truncated=t == 4) for t in range(2, 9)]
    results = []
    for restart in (False, True):
        buffer = ReplayBuffer(FIELDS, 100)
        assembler = NStep(buffer, 1, 3, 0.5)
        assembler.push(**step(0))
        assembler.push(**step(1))
        if restart:
            state = assembler.state()
            assembler = NStep(buffer, 1, 3, 0.5)
            assembler.restore(state)
        for one in play_on:
            assembler.push(**one)
        results.append(rows(buffer))
    assert results[0] == results[1]
    assert results[0][0][0] == 0
    other = NStep(ReplayBuffer(FIELDS, 10), 1, 2, 0.5)
    with pytest.raises(InvalidInput, match="state"):
        other.restore(state)
    with pytest.raises(InvalidInput, match="state"):
        other.restore({"images": state["images"]})
