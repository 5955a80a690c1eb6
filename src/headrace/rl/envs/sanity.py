"""Environments so simple that what a learner fails in says where it is wrong.

| fails in | look at |
|---|---|
| Bandit | the sign of the policy's loss |
| Identity, IdentityMulti | whether observations and actions belong to the same step; heads of several parts |
| Squared | continuous actions |
| Memory | recurrent state, and whether it is kept and reset at the right steps |
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.rl.envs.definition import Env
from headrace.rl.envs.random import chance, integers, normal, uniform
from headrace.rl.spec import Box, Discrete, MultiDiscrete

__all__ = ["Bandit", "Identity", "IdentityMulti", "Memory", "Squared"]


class Bandit(Env):
    """Four arms, one pull an episode: arm k pays k / 4, with noise. The best policy gets 0.75."""

    id = "headrace/Bandit-v0"
    observation = Box(0.0, 1.0, shape=(1,))
    action = Discrete(4)
    max_steps = 1
    reward_threshold = 0.7

    class Params(NamedTuple):
        noise: float = 0.1

    class State(NamedTuple):
        pulls: int

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return Bandit.State(0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        return Bandit.State(state.pulls + 1), normal(rng, action / 4, params.noise), True

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = 1.0


class Identity(Env):
    """Say what is seen: 1 for the number that the observation marks (one-hot, of 4). The best policy gets 16."""

    id = "headrace/Identity-v0"
    observation = Box(0.0, 1.0, shape=(4,))
    action = Discrete(4)
    max_steps = 16
    reward_threshold = 15.5

    class State(NamedTuple):
        shown: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return Identity.State(integers(rng, 4))

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Any) -> tuple[State, float, bool]:
        return Identity.State(integers(rng, 4)), 1.0 if action == state.shown else 0.0, False

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = 1.0 if state.shown == 0 else 0.0
        out[1] = 1.0 if state.shown == 1 else 0.0
        out[2] = 1.0 if state.shown == 2 else 0.0
        out[3] = 1.0 if state.shown == 3 else 0.0


class IdentityMulti(Env):
    """`Identity` of two numbers at once, one of 3 and one of 2; half a point for each. The best policy gets 16."""

    id = "headrace/IdentityMulti-v0"
    observation = Box(0.0, 1.0, shape=(5,))
    action = MultiDiscrete((3, 2))
    max_steps = 16
    reward_threshold = 15.5

    class State(NamedTuple):
        first: int
        second: int

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return IdentityMulti.State(integers(rng, 3), integers(rng, 2))

    @staticmethod
    def step(state: State, action: Any, rng: Any, params: Any) -> tuple[State, float, bool]:
        reward = (0.5 if action[0] == state.first else 0.0) + (0.5 if action[1] == state.second else 0.0)
        return IdentityMulti.State(integers(rng, 3), integers(rng, 2)), reward, False

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = 1.0 if state.first == 0 else 0.0
        out[1] = 1.0 if state.first == 1 else 0.0
        out[2] = 1.0 if state.first == 2 else 0.0
        out[3] = 1.0 if state.second == 0 else 0.0
        out[4] = 1.0 if state.second == 1 else 0.0


class Squared(Env):
    """Say a number in -1 … 1 as it is seen; what it is off, squared, is lost. The best policy gets 0."""

    id = "headrace/Squared-v0"
    observation = Box(-1.0, 1.0, shape=(1,))
    action = Box(-1.0, 1.0, shape=(1,))
    max_steps = 16
    reward_threshold = -0.5

    class State(NamedTuple):
        shown: float

    @staticmethod
    def reset(rng: Any, params: Any) -> State:
        return Squared.State(uniform(rng, -1.0, 1.0))

    @staticmethod
    def step(state: State, action: Any, rng: Any, params: Any) -> tuple[State, float, bool]:
        off = action[0] - state.shown
        return Squared.State(uniform(rng, -1.0, 1.0)), -off * off, False

    @staticmethod
    def observe(state: State, params: Any, out: Any) -> None:
        out[0] = state.shown


class Memory(Env):
    """A sign is shown once; after a while it is asked for: 1 for the right answer, -1 for the wrong one.

    Without a memory the mean return is 0.
    """

    id = "headrace/Memory-v0"
    observation = Box(-1.0, 1.0, shape=(2,))  # the sign, at the first step only; whether this is the question
    action = Discrete(2)
    max_steps = 0
    reward_threshold = 0.9

    class Params(NamedTuple):
        delay: int = 4  # steps between the sign and the question

    class State(NamedTuple):
        sign: int
        time: int

    @staticmethod
    def reset(rng: Any, params: Params) -> State:
        return Memory.State(1 if chance(rng, 0.5) else 0, 0)

    @staticmethod
    def step(state: State, action: int, rng: Any, params: Params) -> tuple[State, float, bool]:
        asked = state.time > params.delay
        paid = 1.0 if action == state.sign else -1.0
        return Memory.State(state.sign, state.time + 1), paid if asked else 0.0, asked

    @staticmethod
    def observe(state: State, params: Params, out: Any) -> None:
        out[0] = (2.0 * state.sign - 1.0) if state.time == 0 else 0.0
        out[1] = 1.0 if state.time > params.delay else 0.0
