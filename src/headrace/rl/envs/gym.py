"""Puts the environments that come with Headrace into Gymnasium's registry: importing this module is the whole of it.

    gymnasium.make_vec("headrace.rl.envs.gym:headrace/CartPole-v1", num_envs=1024)

or `import headrace.rl.envs.gym` once, and `gymnasium.make_vec("headrace/CartPole-v1", num_envs=1024)` from then on.
"""

from __future__ import annotations

from headrace.core.extras import require
from headrace.rl.envs.registry import SHIPPED, find_env

__all__ = ["register"]


def register() -> None:
    """Register every shipped environment with Gymnasium; again does nothing. Raises `MissingExtra` without it."""
    registration = require("gymnasium.envs.registration", "rl")
    for name in SHIPPED:
        if name in registration.registry:
            continue
        env = find_env(name)
        registration.register(
            id=name,
            entry_point="headrace.rl.envs.vector:SingleEnv",
            vector_entry_point="headrace.rl.envs.vector:VectorEnv",
            reward_threshold=env.reward_threshold,
            max_episode_steps=env.max_steps or None,
            kwargs={"env": name},
        )


register()
