"""Connect four: its rules against a plain board, its bits, and PettingZoo's own test of games by turns."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.rl.envs.batch import BatchEnv
from headrace.rl.envs.connect_four import ConnectFour, ConnectFourSolo
from headrace.rl.envs.turns import TurnsEnv

GAME = "headrace/ConnectFour-v0"


def wins(board: np.ndarray) -> bool:
    """Whether a board of booleans, [6][7], has four in a line; by looking at every line there is."""
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + k * down, column + k * right) for k in range(4)]
                if all(0 <= r < 6 and 0 <= c < 7 and board[r, c] for r, c in cells):
                    return True
    return False


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_games_follow_the_rules(moves):
    state, boards = ConnectFour.reset(None, ()), [np.zeros((6, 7), bool), np.zeros((6, 7), bool)]
    for ply, column in enumerate(moves):
        mine, theirs = boards[ply % 2], boards[1 - ply % 2]
        stones = int((mine | theirs)[:, column].sum())
        assert ConnectFour.is_legal(state, column, ()) == (stones < 6)
        state, reward, over = ConnectFour.step(state, column, None, ())
        if stones == 6:
            assert (reward, over) == (-1.0, True)
            return
        mine[stones, column] = True
        won, full = wins(mine), bool((mine | theirs).all())
        assert (reward, over) == (1.0 if won else 0.0, won or full)
        seen = np.zeros(84, np.float32)
        ConnectFour.observe(state, (), seen)
        np.testing.assert_array_equal(seen.reshape(2, 6, 7), [theirs, mine])  # the next mover's first
        if over:
            return


def test_a_drawn_game_ends_without_a_winner():
    state, rewards = ConnectFour.reset(None, ()), []
    # columns filled in pairs so that no four meet
    for column in [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3,
                   4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6]:  # fmt: skip
        state, reward, over = ConnectFour.step(state, column, None, ())
        rewards.append(reward)
    assert over
    assert rewards == [0.0] * 42


def test_one_policy_plays_both_sides(compiled):
    """In a batch the first mover of random games wins more often than the second, and every game ends in time."""
    batch = BatchEnv(compiled(GAME), 512, seed=1)
    batch.reset()
    rng, won = np.random.default_rng(0), [0, 0]
    for _ in range(60):
        mover = batch.fields()["ply"] % 2
        stones = batch.fields()["mine"] | batch.fields()["theirs"]
        room = ((stones[:, None] >> (7 * np.arange(7) + 5)) & 1) == 0
        action = np.argmax(np.where(room, rng.random((512, 7)), -1), axis=1)
        reward = batch.step(action).reward
        assert (reward >= 0).all()  # legal moves never lose
        for player in (0, 1):
            won[player] += int((reward[mover == player] == 1).sum())
    assert won[0] + won[1] > 512
    assert won[0] > won[1]


def test_solo_play_is_against_a_legal_opponent(compiled):
    batch = BatchEnv(compiled("headrace/ConnectFourSolo-v0"), 256, seed=3)
    obs = batch.reset()
    assert 80 < obs.sum() < 176  # who begins is drawn: about half of the boards hold a stone
    rng, rewards = np.random.default_rng(0), []
    for _ in range(60):
        mine, theirs = batch.fields()["mine"], batch.fields()["theirs"]
        assert not (mine & theirs).any()
        gap = [bin(t).count("1") - bin(m).count("1") for m, t in zip(mine.tolist(), theirs.tolist(), strict=True)]
        assert set(gap) <= {0, 1}
        step = batch.step(rng.integers(7, size=256))
        rewards += step.reward[step.terminated].tolist()
    assert {-1.0, 1.0} <= set(rewards)
    assert not ConnectFourSolo.is_legal(ConnectFourSolo.State(0b111111, 0), 0, ())


def test_pettingzoo_agrees():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PettingZoo by PettingZoo
        warnings.filterwarnings("ignore", "Observation .*")  # an empty board is all zeros; a mask makes a Dict
        test = pytest.importorskip("pettingzoo.test", exc_type=ImportError)
        test.api_test(TurnsEnv(GAME), num_cycles=100)
        test.seed_test(lambda: TurnsEnv(GAME), num_cycles=20)


def test_agents_move_in_turn_until_one_wins():
    env = TurnsEnv(GAME, render_mode="rgb_array")
    env.reset(seed=1)
    for move, column in enumerate([3, 0, 3, 0, 3, 0, 3]):
        assert env.agent_selection == f"player_{move % 2}"
        seen = env.observe(env.agent_selection)
        assert seen["action_mask"].tolist() == [1] * 7
        assert seen["observation"].sum() == move
        env.step(column)
    assert env.terminations == {"player_0": True, "player_1": True}
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert not env.observe("player_1")["action_mask"].any()
    assert env.render().shape == (360, 420, 3)
    env.reset()
    assert env.agents == ["player_0", "player_1"]


def test_a_full_column_is_masked_and_loses():
    env = TurnsEnv(GAME)
    env.reset()
    for _ in range(6):
        env.step(2)
    assert env.observe(env.agent_selection)["action_mask"].tolist() == [1, 1, 0, 1, 1, 1, 1]
    env.step(2)
    assert env.rewards == {"player_0": -1.0, "player_1": 1.0}
    with pytest.raises(InvalidInput, match="expected 0 … 6"):
        env.reset() or env.step(7)


def test_games_for_one_are_no_games_by_turns():
    with pytest.raises(InvalidInput, match="2 or more players"):
        TurnsEnv("headrace/CartPole-v1")
