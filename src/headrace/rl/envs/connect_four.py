"""ConnectFour: two players by turns, each seeing the board from his own side; or one, against chance.

A board is two whole numbers, the stones of either side: bit 7 * column + row, rows counted from below, and a seventh,
empty row on top that keeps columns apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import chance, integers
from headrace.rl.spec import Box, Discrete

__all__ = ["ConnectFour", "ConnectFourSolo"]

_COLUMNS, _ROWS = 7, 6


class ConnectFour(Env):
    """Four stones in a line win: 1 for whoever moves. A stone on a full column loses: -1. A full board is a draw: 0.

    Whoever is to move is the one that observes and acts, so that one policy can play both sides; the reward of a step
    is the mover's, and the other's is its opposite. It is player 0's turn when `ply` is even.
    """

    id = "headrace/ConnectFour-v0"
    observation = Box(0.0, 1.0, shape=(2, _ROWS, _COLUMNS))  # the mover's stones, the other's; the lowest row first
    action = Discrete(_COLUMNS)
    max_steps = 0
    players = 2

    class State(NamedTuple):
        mine: int
        theirs: int
        ply: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return ConnectFour.State(0, 0, 0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        if not ConnectFour.is_legal(state, action, params):
            return ConnectFour.State(state.theirs, state.mine, state.ply + 1), -1.0, True
        stones = _dropped(state.mine, state.theirs, action)
        won = _four_in_a_line(stones)
        over = won or state.ply + 1 == _COLUMNS * _ROWS
        return ConnectFour.State(state.theirs, stones, state.ply + 1), 1.0 if won else 0.0, over

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        _observe(state.mine, state.theirs, out)

    @staticmethod
    def is_legal(state: State, action: int, params: Any) -> bool:
        """Whether there is room in a column."""
        return _has_room(state.mine | state.theirs, action)

    @staticmethod
    def draw(state: State, params: Any) -> Canvas:
        odd = state.ply % 2 == 1
        return _draw(state.theirs if odd else state.mine, state.mine if odd else state.theirs)


class ConnectFourSolo(Env):
    """The same for one player, against one who drops stones at random; who begins is drawn."""

    id = "headrace/ConnectFourSolo-v0"
    observation = Box(0.0, 1.0, shape=(2, _ROWS, _COLUMNS))
    action = Discrete(_COLUMNS)
    max_steps = 0
    reward_threshold = 0.95

    class State(NamedTuple):
        mine: int
        theirs: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        first = _dropped(0, 0, integers(rng, _COLUMNS))
        return ConnectFourSolo.State(0, first if chance(rng, 0.5) else 0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        if not ConnectFourSolo.is_legal(state, action, params):
            return state, -1.0, True
        mine, theirs = _dropped(state.mine, state.theirs, action), state.theirs
        if _four_in_a_line(mine):
            return ConnectFourSolo.State(mine, theirs), 1.0, True
        if _is_full(mine | theirs):
            return ConnectFourSolo.State(mine, theirs), 0.0, True
        theirs = _dropped(theirs, mine, _random_column(mine | theirs, rng))
        lost = _four_in_a_line(theirs)
        return ConnectFourSolo.State(mine, theirs), -1.0 if lost else 0.0, lost or _is_full(mine | theirs)

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        _observe(state.mine, state.theirs, out)

    @staticmethod
    def is_legal(state: State, action: int, params: Any) -> bool:
        """Whether there is room in a column."""
        return _has_room(state.mine | state.theirs, action)

    @staticmethod
    def draw(state: State, params: Any) -> Canvas:
        return _draw(state.mine, state.theirs)


def _has_room(stones: int, column: int) -> bool:
    return (stones >> (7 * column + _ROWS - 1)) & 1 == 0


def _is_full(stones: int) -> bool:
    room = False
    for column in range(_COLUMNS):
        room = room or _has_room(stones, column)
    return not room


def _dropped(mine: int, theirs: int, column: int) -> int:
    """My stones with one more in a column that has room: adding at its bottom carries to the first free cell."""
    mask = 0b111111 << (7 * column)
    return mine | (((mine | theirs) + (1 << (7 * column))) & mask & ~theirs)


def _four_in_a_line(stones: int) -> bool:
    return _line(stones, 1) or _line(stones, 7) or _line(stones, 6) or _line(stones, 8)


def _line(stones: int, shift: int) -> bool:
    """Whether four stones lie one, two and three times `shift` bits apart: upright, level, and both diagonals."""
    pairs = stones & (stones >> shift)
    return pairs & (pairs >> (2 * shift)) != 0


def _random_column(stones: int, rng: Any) -> int:
    """A column with room, each as likely as the others."""
    free = 0
    for column in range(_COLUMNS):
        free += 1 if _has_room(stones, column) else 0
    chosen, found = integers(rng, free), 0
    for column in range(_COLUMNS):
        if _has_room(stones, column):
            if chosen == 0:
                found = column
            chosen -= 1
    return found


def _observe(mine: int, theirs: int, out: Any) -> None:
    for row in range(_ROWS):
        for column in range(_COLUMNS):
            bit, cell = 7 * column + row, row * _COLUMNS + column
            out[cell] = (mine >> bit) & 1
            out[_ROWS * _COLUMNS + cell] = (theirs >> bit) & 1


def _draw(first: int, second: int) -> Canvas:
    canvas = Canvas((0.0, 0.0, _COLUMNS, _ROWS), 420, 360)
    canvas.box(0.0, 0.0, _COLUMNS, _ROWS, (50, 80, 170))
    for column in range(_COLUMNS):
        for row in range(_ROWS):
            bit = 1 << (7 * column + row)
            colour = (230, 200, 60) if first & bit else (200, 60, 50) if second & bit else (240, 240, 240)
            canvas.circle((column + 0.5, row + 0.5), 0.4, colour)
    return canvas
