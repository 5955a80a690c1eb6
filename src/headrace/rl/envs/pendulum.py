"""Pendulum: swing a rod up, and hold it there, with a motor too weak to lift it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import uniform
from headrace.rl.spec import Box

__all__ = ["Pendulum"]


class Pendulum(Env):
    """Each step costs angle² + velocity² / 10 + torque² / 1000, the angle 0 when upright. It never terminates.

    Source: OpenAI Gym's Pendulum-v1, 2016; a uniform rod on a pivot, Euler steps with the velocity first.
    """

    id = "headrace/Pendulum-v1"
    observation = Box((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0))  # cosine and sine of the angle, angular velocity
    action = Box(-2.0, 2.0, shape=(1,))  # torque
    max_steps = 200

    class Params(NamedTuple):
        """SI units."""

        gravity: float = 10.0
        mass: float = 1.0
        length: float = 1.0
        dt: float = 0.05
        max_speed: float = 8.0
        max_torque: float = 2.0

    class State(NamedTuple):
        theta: float
        theta_dot: float

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return Pendulum.State(uniform(rng, -math.pi, math.pi), uniform(rng, -1.0, 1.0))

    @staticmethod
    def step(state: State, action: Any, rng: Any, params: Params) -> tuple[State, float, bool]:
        torque = min(max(action[0], -params.max_torque), params.max_torque)
        turns = math.floor((state.theta + math.pi) / (2 * math.pi))
        angle = (state.theta + math.pi) - turns * (2 * math.pi) - math.pi
        cost = angle * angle + 0.1 * (state.theta_dot * state.theta_dot) + 0.001 * (torque * torque)
        fall = 3 * params.gravity / (2 * params.length) * math.sin(state.theta)
        drive = 3.0 / (params.mass * (params.length * params.length)) * torque
        theta_dot = state.theta_dot + (fall + drive) * params.dt
        theta_dot = min(max(theta_dot, -params.max_speed), params.max_speed)
        return Pendulum.State(state.theta + theta_dot * params.dt, theta_dot), -cost, False

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = math.cos(state.theta)
        out[1] = math.sin(state.theta)
        out[2] = state.theta_dot

    @staticmethod
    def draw(state: State, params: Params) -> Canvas:
        reach = 1.2 * params.length
        canvas = Canvas((-reach, -reach, reach, reach))
        tip = (-params.length * math.sin(state.theta), params.length * math.cos(state.theta))
        canvas.line([(0.0, 0.0), tip], (204, 77, 77), 0.2)
        canvas.circle((0.0, 0.0), 0.05, (0, 0, 0))
        return canvas
