"""FourRooms: a grid world of four rooms joined by doors."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import chance, integers
from headrace.rl.spec import Box, Discrete

__all__ = ["FourRooms"]

_SIDE = 11


class FourRooms(Env):
    """Walk to the goal: 1 there, less a hundredth for each step. Now and then the floor is slippery and the step goes
    somewhere else. Start and goal are drawn anew for each episode.

    Source of the map: Sutton, Precup, Singh, "Between MDPs and semi-MDPs", 1999.
    """

    id = "headrace/FourRooms-v0"
    observation = Box(0.0, 1.0, shape=(4,))  # column and row of the walker and of the goal, from 0 to 1
    action = Discrete(4)  # right, down, left, up
    max_steps = 200
    reward_threshold = 0.8

    class Params(NamedTuple):
        slip: float = 0.1  # how often a step goes in a random direction
        step_cost: float = 0.01

    class State(NamedTuple):
        x: int
        y: int
        goal_x: int
        goal_y: int

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        x, y = _free_cell(rng)
        goal_x, goal_y = _free_cell(rng)
        while goal_x == x and goal_y == y:
            goal_x, goal_y = _free_cell(rng)
        return FourRooms.State(x, y, goal_x, goal_y)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        direction = integers(rng, 4) if chance(rng, params.slip) else action
        x = state.x + (1 if direction == 0 else 0) - (1 if direction == 2 else 0)
        y = state.y + (1 if direction == 1 else 0) - (1 if direction == 3 else 0)
        free = 0 <= x < _SIDE and 0 <= y < _SIDE and not is_wall(x, y)
        x, y = x if free else state.x, y if free else state.y
        there = x == state.goal_x and y == state.goal_y
        reward = (1.0 if there else 0.0) - params.step_cost
        return FourRooms.State(x, y, state.goal_x, state.goal_y), reward, there

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        scale = 1.0 / (_SIDE - 1)
        out[0] = state.x * scale
        out[1] = state.y * scale
        out[2] = state.goal_x * scale
        out[3] = state.goal_y * scale

    @staticmethod
    def draw(state: State, params: Params) -> Canvas:
        canvas = Canvas((-1.0, -_SIDE - 1.0, _SIDE + 1.0, 1.0))  # row 0 on top
        canvas.box(-1.0, -_SIDE - 1.0, _SIDE + 1.0, 1.0, (60, 60, 70))
        for x in range(_SIDE):
            for y in range(_SIDE):
                if not is_wall(x, y):
                    canvas.box(x, -y - 0.97, x + 0.97, -y, (235, 235, 230))
        canvas.box(state.goal_x + 0.1, -state.goal_y - 0.87, state.goal_x + 0.87, -state.goal_y - 0.1, (90, 170, 90))
        canvas.circle((state.x + 0.5, -state.y - 0.5), 0.35, (70, 110, 200))
        return canvas


def is_wall(x: int, y: int) -> bool:
    """Whether a cell of the 11 x 11 map is wall: a cross with four doors, its right arm one row lower."""
    upright = x == 5 and y != 2 and y != 9
    left_arm = y == 5 and x < 5 and x != 1
    right_arm = y == 6 and x > 5 and x != 8
    return upright or left_arm or right_arm


def _free_cell(rng: Any) -> tuple[int, int]:
    x, y = integers(rng, _SIDE), integers(rng, _SIDE)
    while is_wall(x, y):
        x, y = integers(rng, _SIDE), integers(rng, _SIDE)
    return x, y
