"""Any rows of a batch of environments, stepped from Python: ranges of environments in, their rows of arrays written.

Ranges that do not overlap may be stepped by different threads at the same time; the GIL is released meanwhile.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_int32, c_int64, c_uint64, c_void_p

import numpy as np

from headrace.errors import InvalidInput
from headrace.rl.envs import CompiledEnv

__all__ = ["EnvRows"]

_RANGE = (c_void_p, c_int64, c_uint64, c_int64, c_int64)  # state, n, seed, first, last: see headrace/rl/env.hpp
_RESET = CFUNCTYPE(None, *_RANGE, c_void_p)
_RESTART = CFUNCTYPE(None, *_RANGE, c_void_p, c_void_p)
_STEP = CFUNCTYPE(None, *_RANGE, *[c_void_p] * 6, c_int32)
_SAME_STEP = 1


class EnvRows:
    """`n` environments that begin their next episode in the step that ends one. Actions are written into `actions`
    (int32 or float32 [n][k]) before a step; it writes `obs` and, where an episode ended, `final_obs` (float32
    [n][obs_size]), `rewards` float32[n], `terminated` and `truncated` uint8[n]."""

    def __init__(self, env: CompiledEnv, n: int, seed: int) -> None:
        if not 0 <= seed < 1 << 64:
            raise InvalidInput(f"environments: expected a seed in 0 … 2^64 - 1, got {seed}")
        self.env, self.n, self.seed = env, n, seed
        space = env.spec.action
        self.actions = np.zeros((n, space.size), space.dtype)
        self.obs, self.final_obs = (np.zeros((n, env.spec.obs_size), np.float32) for _ in range(2))
        self.rewards = np.zeros(n, np.float32)
        self.terminated, self.truncated, self._mask = (np.zeros(n, np.uint8) for _ in range(3))
        self._state = env.new_state(n)
        self._reset, self._restart = _RESET(env.reset_address), _RESTART(env.restart_address)
        self._step = _STEP(env.step_address)
        outputs = (self.obs, self.final_obs, self.rewards, self.terminated, self.truncated)
        self._pointers = [array.ctypes.data for array in (self.actions, *outputs)]

    def reset(self, first: int, last: int) -> None:
        """Begin episode 0 of environments [first, last)."""
        self._reset(self._state.ctypes.data, self.n, self.seed, first, last, self.obs.ctypes.data)

    def restart(self, number: int) -> None:
        """Begin the next episode of one environment."""
        self._mask[number] = 1
        pointers = self._mask.ctypes.data, self.obs.ctypes.data
        self._restart(self._state.ctypes.data, self.n, self.seed, number, number + 1, *pointers)

    def step(self, first: int, last: int) -> None:
        """Take one step in environments [first, last)."""
        self._step(self._state.ctypes.data, self.n, self.seed, first, last, *self._pointers, _SAME_STEP)
