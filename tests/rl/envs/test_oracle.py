"""Every shipped environment, compiled, against itself run as plain Python: same seed, same actions, same everything."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.envs.plain import PlainEnv, sample_action
from headrace.rl.envs.random import new_stream
from headrace.rl.envs.registry import SHIPPED

SLOW_IN_PYTHON = {"headrace/Particles-v0", "headrace/Hover-v0"}  # tests/rl/envs/test_physics.py
NAMES = sorted(set(SHIPPED) - SLOW_IN_PYTHON)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_steps_like_plain_python(name, compiled):
    """Several environments of a batch over several episodes, resets and randomness within steps included."""
    env, n, steps = compiled(name), 3, 90
    batch = BatchEnv(env, n, autoreset=Autoreset.SAME_STEP, seed=11)
    plain = [PlainEnv(env.definition, seed=11, number=i) for i in range(n)]
    actions = new_stream(5)
    np.testing.assert_array_equal(batch.reset().reshape(n, -1), [p.reset() for p in plain])
    episodes = 0
    for _ in range(steps):
        given = [sample_action(env.definition, actions) for _ in range(n)]
        obs, reward, terminated, truncated = batch.step(np.array(given))
        for i, twin in enumerate(plain):
            seen, earned, over, cut = twin.step(given[i])
            assert (bool(terminated[i]), bool(truncated[i])) == (over, cut)
            assert reward[i] == pytest.approx(earned, rel=1e-6, abs=1e-6)
            if over or cut:
                episodes += 1
                np.testing.assert_allclose(batch.final_obs[i].ravel(), seen, rtol=0, atol=1e-6)
                seen = twin.reset()
            np.testing.assert_allclose(obs[i].ravel(), seen, rtol=0, atol=1e-6)
            for field in env.definition.fields:
                np.testing.assert_allclose(
                    batch.fields()[field.name][i], getattr(twin.state, field.name), rtol=0, atol=1e-11
                )
    if env.spec.max_steps in range(1, steps):
        assert episodes >= n


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_environments_say_what_they_are(name, compiled):
    spec = compiled(name).spec
    assert spec.id == name
    assert compiled(name).definition.env.__doc__
    assert spec.max_steps >= 0


@pytest.mark.parametrize("name", NAMES)
def test_observations_lie_in_their_space(name, compiled):
    env = compiled(name)
    batch = BatchEnv(env, 64, seed=2)
    actions = new_stream(3)
    obs = batch.reset()
    for _ in range(60):
        assert (obs >= env.spec.observation.low).all()
        assert (obs <= env.spec.observation.high).all()
        obs = batch.step(np.array([sample_action(env.definition, actions) for _ in range(64)])).obs
