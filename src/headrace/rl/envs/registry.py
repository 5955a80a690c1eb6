"""Environments by name: an id, a `module:Class` or a class in; the compiled environment out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from headrace.errors import NotFound
from headrace.rl.envs.compiler import CompiledEnv, compile
from headrace.rl.envs.definition import Env

__all__ = ["SHIPPED", "find_env", "make_env"]

SHIPPED: Mapping[str, str] = {
    "headrace/Acrobot-v1": "headrace.rl.envs.acrobot:Acrobot",
    "headrace/Bandit-v0": "headrace.rl.envs.sanity:Bandit",
    "headrace/CartPole-v1": "headrace.rl.envs.cartpole:CartPole",
    "headrace/ConnectFour-v0": "headrace.rl.envs.connect_four:ConnectFour",
    "headrace/ConnectFourSolo-v0": "headrace.rl.envs.connect_four:ConnectFourSolo",
    "headrace/FourRooms-v0": "headrace.rl.envs.four_rooms:FourRooms",
    "headrace/Hover-v0": "headrace.rl.envs.hover:Hover",
    "headrace/Identity-v0": "headrace.rl.envs.sanity:Identity",
    "headrace/IdentityMulti-v0": "headrace.rl.envs.sanity:IdentityMulti",
    "headrace/Memory-v0": "headrace.rl.envs.sanity:Memory",
    "headrace/MountainCar-v0": "headrace.rl.envs.mountain_car:MountainCar",
    "headrace/MountainCarContinuous-v0": "headrace.rl.envs.mountain_car:MountainCarContinuous",
    "headrace/Particles-v0": "headrace.rl.envs.particles:Particles",
    "headrace/Pendulum-v1": "headrace.rl.envs.pendulum:Pendulum",
    "headrace/Squared-v0": "headrace.rl.envs.sanity:Squared",
}
"""Where the definition of each environment that comes with Headrace lies."""


def find_env(name: str) -> type[Env]:
    """The definition of a shipped id, or of `package.module:Class`. Raises `NotFound` that lists the ids."""
    module, _, attribute = SHIPPED.get(name, name).partition(":")
    if not attribute:
        raise NotFound(f"no environment {name!r}; there are {', '.join(SHIPPED)}, and any package.module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotFound(f"environment {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise NotFound(f"environment {name!r}: {found!r} is not a class derived from headrace.rl.envs.Env")
    return found


def make_env(
    env: str | type[Env],
    params: Mapping[str, Any] | tuple[Any, ...] | None = None,
    *,
    max_steps: int | None = None,
) -> CompiledEnv:
    """Compile an environment, or find it in the cache.

    `env`: the id of one that comes with Headrace (`"headrace/CartPole-v1"`), `"package.module:Class"`, or the class.
    `params`: changes to its `Params`; `max_steps`: in place of its own. Errors are those of `find_env` and `compile`.
    """
    return compile(find_env(env) if isinstance(env, str) else env, params, max_steps=max_steps)
