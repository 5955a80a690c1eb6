"""Environments that are compiled once for all tests."""

from __future__ import annotations

import pytest

from headrace.rl.envs import CompiledEnv, make_env


@pytest.fixture(scope="session")
def cartpole() -> CompiledEnv:
    return make_env("headrace/CartPole-v1")
