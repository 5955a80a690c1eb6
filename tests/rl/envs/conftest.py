"""Compiled environments, each made once a session (and found in the disk cache the next time)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from headrace.rl.envs import CompiledEnv, make_env


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], CompiledEnv]:
    return cache(make_env)
