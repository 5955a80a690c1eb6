"""CartPole: a pole on a cart that is pushed left or right."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import uniform
from headrace.rl.spec import Box, Discrete

__all__ = ["CartPole"]


class CartPole(Env):
    """Balance a pole by pushing its cart; +1 for each step, until it leans 12 degrees or the cart leaves the track.

    Source: Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems",
    1983; dynamics after R. V. Florian, "Correct equations for the dynamics of the cart-pole system", 2005.
    """

    id = "headrace/CartPole-v1"
    observation = Box(
        (-4.8, -np.inf, -24 * math.pi / 180, -np.inf), (4.8, np.inf, 24 * math.pi / 180, np.inf)
    )  # position, velocity, angle, angular velocity
    action = Discrete(2)  # left, right
    max_steps = 500
    reward_threshold = 475.0

    class Params(NamedTuple):
        """SI units."""

        gravity: float = 9.8
        mass_cart: float = 1.0
        mass_pole: float = 0.1
        half_length: float = 0.5
        force: float = 10.0
        tau: float = 0.02
        limit_x: float = 2.4
        limit_theta: float = 12 * 2 * math.pi / 360

    class State(NamedTuple):
        x: float
        x_dot: float
        theta: float
        theta_dot: float

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return CartPole.State(
            uniform(rng, -0.05, 0.05), uniform(rng, -0.05, 0.05), uniform(rng, -0.05, 0.05), uniform(rng, -0.05, 0.05)
        )

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        total_mass = params.mass_pole + params.mass_cart
        moment = params.mass_pole * params.half_length
        force = params.force if action == 1 else -params.force
        cos, sin = math.cos(state.theta), math.sin(state.theta)
        push = (force + moment * (state.theta_dot * state.theta_dot) * sin) / total_mass
        theta_acc = (params.gravity * sin - cos * push) / (
            params.half_length * (4.0 / 3.0 - params.mass_pole * (cos * cos) / total_mass)
        )
        x_acc = push - moment * theta_acc * cos / total_mass
        x = state.x + params.tau * state.x_dot
        theta = state.theta + params.tau * state.theta_dot
        out = x < -params.limit_x or x > params.limit_x or theta < -params.limit_theta or theta > params.limit_theta
        after = CartPole.State(x, state.x_dot + params.tau * x_acc, theta, state.theta_dot + params.tau * theta_acc)
        return after, 1.0, out

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = state.x
        out[1] = state.x_dot
        out[2] = state.theta
        out[3] = state.theta_dot

    @staticmethod
    def draw(state: State, params: Params) -> Canvas:
        canvas = Canvas((-params.limit_x, -0.6, params.limit_x, 1.8), 600, 300)
        canvas.line([(-params.limit_x, 0.0), (params.limit_x, 0.0)], (0, 0, 0), 0.01)
        canvas.box(state.x - 0.25, -0.15, state.x + 0.25, 0.15, (60, 60, 70))
        length = 2 * params.half_length
        tip = (state.x + length * math.sin(state.theta), length * math.cos(state.theta))
        canvas.line([(state.x, 0.0), tip], (202, 152, 101), 0.09)
        canvas.circle((state.x, 0.0), 0.045, (129, 132, 203))
        return canvas
