"""An environment run as the plain Python it is: the oracle of its compiled form, and its rehearsal before compiling.

Slow, with whole tracebacks and array bounds checked; given the same seed and number it draws what the compiled loop
draws.
"""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.envs.definition import Definition
from headrace.rl.envs.random import integers, key_stream, new_stream, uniform
from headrace.rl.spec import Box, Discrete

__all__ = ["PlainEnv", "rehearse"]


class PlainEnv:
    """Environment number `number` of a batch with `seed`, alone and uncompiled. It never resets itself."""

    def __init__(self, definition: Definition, seed: int = 0, number: int = 0) -> None:
        self.definition = definition
        self.seed, self.number = seed, number
        self.episode, self.steps = -1, 0
        self.state = definition.new_state()
        self._rng = new_stream(seed, number)

    def reset(self) -> NDArray[np.float32]:
        """Begin the next episode, the first one being number 0; its first observation, float32[obs_size]."""
        self.episode, self.steps = self.episode + 1, 0
        key_stream(self._rng, self.seed, self.number, self.episode, 0)
        reset, params = self.definition.reset, self.definition.params
        state = reset(self.state, self._rng, params) if self.definition.reset_takes_state else reset(self._rng, params)
        self.state = self._checked("reset", state)
        return self.observe()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool]:
        """(observation, reward, terminated, truncated). `action`: an int, or a sequence of numbers."""
        self.steps += 1
        key_stream(self._rng, self.seed, self.number, self.episode, self.steps)
        given = int(action) if isinstance(self.definition.spec.action, Discrete) else np.ravel(action).tolist()
        returned = self.definition.step(self.state, given, self._rng, self.definition.params)
        if not (isinstance(returned, tuple) and len(returned) == 3 and _are_numbers(returned[1:])):
            raise InvalidInput(
                f"{_where(self.definition, 'step')}: expected (State, reward, terminated), it returned {returned!r}"
            )
        state, reward, terminated = returned
        self.state = self._checked("step", state)
        truncated = 0 < self.definition.spec.max_steps <= self.steps
        return self.observe(), float(reward), bool(terminated), truncated

    def _checked(self, name: str, state: Any) -> Any:
        if isinstance(state, self.definition.state_type):
            return state
        expected = self.definition.state_type.__qualname__
        raise InvalidInput(f"{_where(self.definition, name)}: expected a {expected}, got {state!r}")

    def observe(self) -> NDArray[np.float32]:
        out = np.full(self.definition.spec.obs_size, np.nan, np.float32)
        self.definition.observe(self.state, self.definition.params, out)
        return out


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, (bool, int, float, np.generic)) for value in values)


def sample_action(definition: Definition, rng: Any) -> Any:
    """A random action: uniform, or within 1 of the finite bound where a box has no other."""
    space = definition.spec.action
    if isinstance(space, Discrete):
        return integers(rng, space.n)
    if isinstance(space, Box):
        low, high = np.nan_to_num(space.low, neginf=-1e9).ravel(), np.nan_to_num(space.high, posinf=1e9).ravel()
        low, high = np.maximum(low, np.minimum(high - 2, -1)), np.minimum(high, np.maximum(low + 2, 1))
        return [float(np.float32(uniform(rng, float(a), float(b)))) for a, b in zip(low, high, strict=True)]
    return [integers(rng, n) for n in space.nvec]


def rehearse(definition: Definition, steps: int = 16, patience_s: float = 0.5) -> None:
    """Run an environment for a few steps and look at everything it returns; fewer, but one, where they take long.

    Raises `InvalidInput` naming the function, and the line of the user's file where something was raised.
    """
    env, actions, until = PlainEnv(definition), new_stream(1), time.monotonic() + patience_s
    _run(definition, "reset", env.reset)
    _check_state(definition, "reset", env)
    for _ in range(steps):
        before = env.state
        action = sample_action(definition, actions)
        observation, _, terminated, truncated = _run(definition, "step", lambda a=action: env.step(a))
        _check_state(definition, "step", env)
        for field in definition.fields:
            if field.is_array and getattr(env.state, field.name) is not getattr(before, field.name):
                raise InvalidInput(
                    f"{_where(definition, 'step')}: must return the array it was given as {field.name}, changed "
                    "in place, and not another one"
                )
        if np.isnan(observation).any():
            missing = np.flatnonzero(np.isnan(observation)).tolist()
            raise InvalidInput(
                f"{_where(definition, 'observe')}: left out[{missing[0]}] unwritten, or wrote NaN; it must write "
                f"all {len(observation)} numbers"
            )
        if terminated or truncated:
            _run(definition, "reset", env.reset)
        if time.monotonic() > until:
            return


def _run(definition: Definition, name: str, call: Any) -> Any:
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        where = _where(definition, name)
        if frames:
            where = f"{frames[-1].filename}:{frames[-1].lineno}: {definition.env.__qualname__}.{name}"
        raise InvalidInput(f"{where}: failed when it was tried: {type(error).__name__}: {error}") from error


def _where(definition: Definition, name: str) -> str:
    code = getattr(definition, name).__code__
    return f"{code.co_filename}:{code.co_firstlineno}: {definition.env.__qualname__}.{name}"


def _check_state(definition: Definition, name: str, env: PlainEnv) -> None:
    where, state = _where(definition, name), env.state
    kinds = {"f": (int, float, np.number), "i": (int, np.integer), "b": (bool, np.bool_)}
    for field in definition.fields:
        value = getattr(state, field.name)
        if field.is_array:
            if not isinstance(value, np.ndarray) or value.shape != field.shape or value.dtype != field.dtype:
                raise InvalidInput(f"{where}: {field.name}: expected {field.dtype}{list(field.shape)}, got {value!r}")
        elif not isinstance(value, kinds[field.dtype.kind]):
            raise InvalidInput(f"{where}: {field.name}: expected {field.dtype}, got {value!r}")
