"""Acrobot: two links in a row, with a motor between them only."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from headrace.rl.envs.canvas import Canvas
from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import uniform
from headrace.rl.spec import Box, Discrete

__all__ = ["Acrobot"]

_MAX_DOT_1, _MAX_DOT_2 = 4 * math.pi, 9 * math.pi


class Acrobot(Env):
    """Swing the free end above the height of one link; -1 for each step until it is there.

    Source: R. S. Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding",
    1996; equations of Sutton and Barto's book, Runge-Kutta steps of 4th order.
    """

    id = "headrace/Acrobot-v1"
    # cosine and sine of either angle, then the angular velocities
    observation = Box((-1.0, -1.0, -1.0, -1.0, -_MAX_DOT_1, -_MAX_DOT_2), (1.0, 1.0, 1.0, 1.0, _MAX_DOT_1, _MAX_DOT_2))
    action = Discrete(3)  # torque -1, 0, 1
    max_steps = 500
    reward_threshold = -100.0

    class Params(NamedTuple):
        """SI units; both links alike, their centres of mass in the middle."""

        gravity: float = 9.8
        mass: float = 1.0
        length: float = 1.0
        inertia: float = 1.0
        torque: float = 1.0
        dt: float = 0.2
        max_dot_1: float = _MAX_DOT_1
        max_dot_2: float = _MAX_DOT_2

    class State(NamedTuple):
        theta1: float  # from hanging down
        theta2: float  # relative to the first link
        theta1_dot: float
        theta2_dot: float

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return Acrobot.State(
            uniform(rng, -0.1, 0.1), uniform(rng, -0.1, 0.1), uniform(rng, -0.1, 0.1), uniform(rng, -0.1, 0.1)
        )

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        torque, half, dt = (action - 1) * params.torque, params.dt / 2.0, params.dt
        a1, a2, a3, a4 = _derivative(state.theta1, state.theta2, state.theta1_dot, state.theta2_dot, torque, params)
        b1, b2, b3, b4 = _derivative(
            state.theta1 + half * a1, state.theta2 + half * a2,
            state.theta1_dot + half * a3, state.theta2_dot + half * a4, torque, params,
        )  # fmt: skip
        c1, c2, c3, c4 = _derivative(
            state.theta1 + half * b1, state.theta2 + half * b2,
            state.theta1_dot + half * b3, state.theta2_dot + half * b4, torque, params,
        )  # fmt: skip
        d1, d2, d3, d4 = _derivative(
            state.theta1 + dt * c1, state.theta2 + dt * c2,
            state.theta1_dot + dt * c3, state.theta2_dot + dt * c4, torque, params,
        )  # fmt: skip
        sixth = dt / 6.0
        theta1 = _wrapped(state.theta1 + sixth * (a1 + 2 * b1 + 2 * c1 + d1))
        theta2 = _wrapped(state.theta2 + sixth * (a2 + 2 * b2 + 2 * c2 + d2))
        theta1_dot = _bounded(state.theta1_dot + sixth * (a3 + 2 * b3 + 2 * c3 + d3), params.max_dot_1)
        theta2_dot = _bounded(state.theta2_dot + sixth * (a4 + 2 * b4 + 2 * c4 + d4), params.max_dot_2)
        up = -math.cos(theta1) - math.cos(theta2 + theta1) > 1.0
        return Acrobot.State(theta1, theta2, theta1_dot, theta2_dot), 0.0 if up else -1.0, up

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = math.cos(state.theta1)
        out[1] = math.sin(state.theta1)
        out[2] = math.cos(state.theta2)
        out[3] = math.sin(state.theta2)
        out[4] = state.theta1_dot
        out[5] = state.theta2_dot

    @staticmethod
    def draw(state: State, params: Params) -> Canvas:
        reach = 2.2 * params.length
        canvas = Canvas((-reach, -reach, reach, reach))
        canvas.line([(-reach, params.length), (reach, params.length)], (160, 160, 160), 0.02)
        elbow = (params.length * math.sin(state.theta1), -params.length * math.cos(state.theta1))
        angle = state.theta1 + state.theta2
        tip = (elbow[0] + params.length * math.sin(angle), elbow[1] - params.length * math.cos(angle))
        canvas.line([(0.0, 0.0), elbow], (0, 170, 170), 0.2)
        canvas.line([elbow, tip], (0, 170, 170), 0.2)
        for joint in ((0.0, 0.0), elbow):
            canvas.circle(joint, 0.1, (200, 170, 0))
        return canvas


def _derivative(
    theta1: float, theta2: float, dot1: float, dot2: float, torque: float, params: Acrobot.Params
) -> tuple[float, float, float, float]:
    """Velocities and accelerations of both angles."""
    m, length, inertia, g = params.mass, params.length, params.inertia, params.gravity
    centre = length / 2.0
    cos2, sin2 = math.cos(theta2), math.sin(theta2)
    d1 = m * (centre * centre) + m * (length * length + centre * centre + 2 * length * centre * cos2)
    d1 = d1 + inertia + inertia
    d2 = m * (centre * centre + length * centre * cos2) + inertia
    phi2 = m * centre * g * math.cos(theta1 + theta2 - math.pi / 2.0)
    phi1 = (
        -m * length * centre * (dot2 * dot2) * sin2
        - 2 * m * length * centre * dot2 * dot1 * sin2
        + (m * centre + m * length) * g * math.cos(theta1 - math.pi / 2.0)
        + phi2
    )
    acceleration2 = (torque + d2 / d1 * phi1 - m * length * centre * (dot1 * dot1) * sin2 - phi2) / (
        m * (centre * centre) + inertia - (d2 * d2) / d1
    )
    return dot1, dot2, -(d2 * acceleration2 + phi1) / d1, acceleration2


def _wrapped(angle: float) -> float:
    """Into [-pi, pi], by three turns at most: more than the fastest link makes in a step. No loop, no branch."""
    turn = 2 * math.pi
    angle = angle - turn if angle > math.pi else angle
    angle = angle - turn if angle > math.pi else angle
    angle = angle - turn if angle > math.pi else angle
    angle = angle + turn if angle < -math.pi else angle
    angle = angle + turn if angle < -math.pi else angle
    return angle + turn if angle < -math.pi else angle


def _bounded(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)
