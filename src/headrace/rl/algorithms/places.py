"""Where a policy is trained: the name of an environment in; a compiled one, or what makes one for a process, out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from headrace.core.extras import require
from headrace.errors import NotFound
from headrace.rl.envs import CompiledEnv, Env, make_env

__all__ = ["Place", "find_place"]

Place: TypeAlias = CompiledEnv | Callable[[], Any]
"""A compiled environment, or what makes a Gymnasium environment."""


def find_place(name: str) -> Place:
    """The environment of a name: `headrace/…`, `package.module:Class` of a definition or `package.module:factory` of a
    Gymnasium environment, or an id of Gymnasium's. Raises `NotFound` for a name that is none of these."""
    if name.startswith("headrace/"):
        return make_env(name)
    module, colon, attribute = name.partition(":")
    if colon:
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            raise NotFound(f"environment {name!r}: {error}") from error
        if isinstance(found, type) and issubclass(found, Env):
            return make_env(found)
        if not callable(found):
            raise NotFound(f"environment {name!r}: expected a class or a function, got {found!r}")
        made: Callable[[], Any] = found
        return made
    gymnasium = require("gymnasium", "rl")
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise NotFound(f"environment {name!r}: neither of Headrace's nor of Gymnasium's: {error}") from error
    return partial(gymnasium.make, name)
