"""A rigid plank with a thruster at each end, in a vertical plane with a floor: it is to hover over the origin."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import uniform
from headrace.rl.spec import Box

__all__ = ["Hover"]


class Hover(Env):
    """Bring a plank to rest, level, 1 m above the middle of the floor by the thrust of its two ends.

    The body is integrated by semi-implicit Euler in float64; its four corners meet the floor through damped springs and
    Coulomb friction. The reward is 1 at the goal and falls with distance, tilt and speed; leaving the room ends it.

    Source: Featherstone, "Rigid Body Dynamics Algorithms", 2008, for the contact model its section 11.8.
    """

    id = "headrace/Hover-v0"
    observation = Box(-np.inf, np.inf, shape=(7,))  # x, y - 1, sin and cos of the tilt, velocities
    action = Box(-1.0, 1.0, shape=(2,))  # left and right thrust: from none to twice the weight between them
    max_steps = 400
    reward_threshold = 300.0

    class Params(NamedTuple):
        """SI units."""

        gravity: float = 9.81
        mass: float = 1.0
        half_length: float = 0.25
        half_height: float = 0.05
        tau: float = 0.01
        stiffness: float = 2000.0
        damping: float = 20.0
        friction: float = 0.6
        room: float = 3.0

    class State(NamedTuple):
        x: float
        y: float
        tilt: float
        vx: float
        vy: float
        spin: float

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return Hover.State(
            uniform(rng, -1.0, 1.0),
            uniform(rng, 0.5, 1.5),
            uniform(rng, -0.3, 0.3),
            uniform(rng, -0.3, 0.3),
            uniform(rng, -0.3, 0.3),
            uniform(rng, -0.3, 0.3),
        )

    @staticmethod
    def step(state: State, action: Any, rng: Any, params: Params) -> tuple[State, float, bool]:
        cos, sin = math.cos(state.tilt), math.sin(state.tilt)
        half_weight = 0.5 * params.mass * params.gravity
        left = half_weight * (1.0 + min(max(action[0], -1.0), 1.0))
        right = half_weight * (1.0 + min(max(action[1], -1.0), 1.0))
        force_x = -sin * (left + right)
        force_y = cos * (left + right) - params.mass * params.gravity
        torque = params.half_length * (right - left)
        for corner in range(4):
            along = params.half_length if corner % 2 == 1 else -params.half_length
            across = params.half_height if corner >= 2 else -params.half_height
            arm_x, arm_y = along * cos - across * sin, along * sin + across * cos
            depth = -(state.y + arm_y)
            if depth > 0.0:
                slip, sink = state.vx - state.spin * arm_y, state.vy + state.spin * arm_x
                normal = max(params.stiffness * depth - params.damping * sink, 0.0)
                limit = params.friction * normal
                drag = min(max(-params.damping * slip, -limit), limit)
                force_x += drag
                force_y += normal
                torque += arm_x * normal - arm_y * drag
        inertia = (
            params.mass * (params.half_length * params.half_length + params.half_height * params.half_height) / 3.0
        )
        vx = state.vx + params.tau * force_x / params.mass
        vy = state.vy + params.tau * force_y / params.mass
        spin = state.spin + params.tau * torque / inertia
        x, y = state.x + params.tau * vx, state.y + params.tau * vy
        tilt = state.tilt + params.tau * spin
        away = x * x + (y - 1.0) * (y - 1.0)
        motion = vx * vx + vy * vy + 0.1 * spin * spin
        reward = 1.0 / (1.0 + 4.0 * away + 0.5 * motion + 0.5 * (1.0 - math.cos(tilt)))
        out = x < -params.room or x > params.room or y > params.room
        return Hover.State(x, y, tilt, vx, vy, spin), reward, out

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = state.x
        out[1] = state.y - 1.0
        out[2] = math.sin(state.tilt)
        out[3] = math.cos(state.tilt)
        out[4] = state.vx
        out[5] = state.vy
        out[6] = state.spin
