"""Whole episodes of whoever acts: observations to actions in, returns and lengths out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.rl.algorithms.experience import Source
from headrace.rl.policy import Floats
from headrace.rl.trajectory import EpisodeStats

__all__ = ["play"]


def play(
    source: Source,
    act: Callable[[Floats], npt.NDArray[Any]],
    episodes: int,
    seed: int,
    *,
    most_steps: int = 100_000,
) -> EpisodeStats:
    """The first episode after a reset of each environment, so that short ones do not count more often, in as many
    rounds of seeds as it takes.

    Args:
        act: The actions for observations float32[n, D], as the environments take them.
        most_steps: Of an episode; beyond, it is an error.

    Raises `InvalidInput` where an episode does not end.
    """
    returns, lengths = np.zeros((2, episodes))
    for first in range(0, episodes, source.n_envs):
        last = min(first + source.n_envs, episodes)
        running = np.arange(source.n_envs) < last - first
        obs = source.reset(seed + first)
        steps = 0
        while running.any():
            if steps == most_steps:
                raise InvalidInput(
                    f"{source.env_spec.id}: {running.sum()} of {last - first} episodes did not end in {steps} steps"
                )
            step = source.step(act(obs))
            counted = running[: last - first]
            returns[first:last] += np.where(counted, step.reward[: last - first], 0.0)
            lengths[first:last] += counted
            running &= ~(step.terminated | step.truncated | step.lost)
            obs, steps = step.obs, steps + 1
    return EpisodeStats(returns, lengths.astype(np.int64))
