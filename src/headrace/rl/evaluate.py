"""How good a policy is: parameters and the statistics it sees observations through in, whole greedy episodes out."""

from __future__ import annotations

import numpy as np

from headrace.errors import InvalidInput
from headrace.rl.envs import CompiledEnv
from headrace.rl.normalise import Moments
from headrace.rl.policy import Floats, MlpSpec
from headrace.rl.rollout import Collector, EpisodeStats

__all__ = ["EVALUATION_SEED", "evaluate"]

EVALUATION_SEED = 1 << 62
"""Added to the seed: environments that training has not seen."""

CHUNK = 64
"""Steps between looks at who has ended."""


def evaluate(
    env: CompiledEnv,
    spec: MlpSpec,
    parameters: Floats,
    *,
    moments: Moments | None = None,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    threads: int | None = None,
    most_steps: int = 100_000,
) -> EpisodeStats:
    """The first episode of each of `episodes` environments, so that short ones do not count more often.

    Args:
        moments: Of the observations; None: they are seen as they are.
        greedy: The most probable action, or the mean; otherwise drawn.
        most_steps: Of an episode; beyond, it is an error.

    Raises `InvalidInput` where an episode does not end.
    """
    collector = Collector(
        env,
        spec,
        n_envs=episodes,
        n_steps=CHUNK,
        seed=(seed + EVALUATION_SEED) % (1 << 63),
        threads=threads,
        normalise_obs=moments is not None,
        update_moments=False,
        greedy=greedy,
    )
    if moments is not None:
        collector.set_moments(moments)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    running = np.ones(episodes, bool)
    for _ in range(0, most_steps, CHUNK):
        trajectory = collector.collect(parameters)
        for rewards, ended in zip(trajectory.rewards, trajectory.terminated | trajectory.truncated, strict=True):
            returns += np.where(running, rewards, 0.0)
            lengths += running
            running &= ended == 0
        if not running.any():
            return EpisodeStats(returns, lengths)
    raise InvalidInput(f"{env.spec.id}: {running.sum()} of {episodes} episodes did not end in {most_steps} steps")
