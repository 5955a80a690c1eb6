"""MountainCar: a car too weak for its hill; with a choice of three pushes, or with any."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import uniform
from headrace.rl.spec import Box, Discrete

__all__ = ["MountainCar", "MountainCarContinuous"]


class MountainCar(Env):
    """Reach the top on the right; -1 for each step until then.

    Source: A. W. Moore, "Efficient memory-based learning for robot control", 1990.
    """

    id = "headrace/MountainCar-v0"
    observation = Box((-1.2, -0.07), (0.6, 0.07))  # position, velocity
    action = Discrete(3)  # left, nothing, right
    max_steps = 200
    reward_threshold = -110.0

    class Params(NamedTuple):
        force: float = 0.001
        gravity: float = 0.0025
        left: float = -1.2
        right: float = 0.6
        max_speed: float = 0.07
        goal: float = 0.5
        goal_speed: float = 0.0

    class State(NamedTuple):
        position: float
        velocity: float

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return MountainCar.State(uniform(rng, -0.6, -0.4), 0.0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        velocity = state.velocity + ((action - 1) * params.force + math.cos(3 * state.position) * -params.gravity)
        position, velocity = _moved(state.position, velocity, params.max_speed, params.left, params.right)
        there = position >= params.goal and velocity >= params.goal_speed
        return MountainCar.State(position, velocity), -1.0, there

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = state.position
        out[1] = state.velocity

    @staticmethod
    def draw(state: State, params: Params) -> Canvas:
        return _draw(state.position, params.left, params.right, params.goal)


class MountainCarContinuous(Env):
    """The same with any force in -1 … 1: +100 at the top, less a tenth of every force squared.

    The state stays float64; Gymnasium rounds its own to float32 after every step.
    """

    id = "headrace/MountainCarContinuous-v0"
    observation = Box((-1.2, -0.07), (0.6, 0.07))
    action = Box(-1.0, 1.0, shape=(1,))
    max_steps = 999
    reward_threshold = 90.0

    class Params(NamedTuple):
        power: float = 0.0015
        gravity: float = 0.0025
        left: float = -1.2
        right: float = 0.6
        max_speed: float = 0.07
        goal: float = 0.45
        goal_speed: float = 0.0

    class State(NamedTuple):
        position: float
        velocity: float

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return MountainCarContinuous.State(uniform(rng, -0.6, -0.4), 0.0)

    @staticmethod
    def step(state: State, action: Any, rng: Any, params: Params) -> tuple[State, float, bool]:
        force = min(max(action[0], -1.0), 1.0)
        velocity = state.velocity + (force * params.power - params.gravity * math.cos(3 * state.position))
        position, velocity = _moved(state.position, velocity, params.max_speed, params.left, params.right)
        there = position >= params.goal and velocity >= params.goal_speed
        reward = (100.0 if there else 0.0) - action[0] * action[0] * 0.1
        return MountainCarContinuous.State(position, velocity), reward, there

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = state.position
        out[1] = state.velocity

    @staticmethod
    def draw(state: State, params: Params) -> Canvas:
        return _draw(state.position, params.left, params.right, params.goal)


def _moved(position: float, velocity: float, max_speed: float, left: float, right: float) -> tuple[float, float]:
    """Position and velocity after a move; the wall on the left stops the car."""
    velocity = min(max(velocity, -max_speed), max_speed)
    position = min(max(position + velocity, left), right)
    return position, 0.0 if position == left and velocity < 0.0 else velocity


def _height(position: float) -> float:
    return math.sin(3 * position) * 0.45 + 0.55


def _draw(position: float, left: float, right: float, goal: float) -> Canvas:
    canvas = Canvas((left, -0.05, right, 1.25), 540, 390)
    hill = [(x, _height(x)) for x in (left + (right - left) * k / 99 for k in range(100))]
    canvas.polygon([(left, -0.05), *hill, (right, -0.05)], (225, 225, 215))
    canvas.line(hill, (0, 0, 0), 0.008)
    foot = (goal, _height(goal))
    canvas.line([foot, (goal, foot[1] + 0.18)], (0, 0, 0), 0.008)
    canvas.polygon([(goal, foot[1] + 0.18), (goal, foot[1] + 0.11), (goal + 0.08, foot[1] + 0.145)], (204, 180, 0))
    canvas.circle((position, _height(position) + 0.04), 0.04, (200, 70, 60))
    return canvas
