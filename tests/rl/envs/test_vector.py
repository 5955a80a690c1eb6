"""Gymnasium's own checks and conventions, on compiled environments."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics

import headrace.rl.envs.gym
from headrace.errors import InvalidInput
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.envs.registry import SHIPPED

CARTPOLE = "headrace/CartPole-v1"
SINGLE = sorted(name for name in SHIPPED if not name.startswith(("headrace/Particles", "headrace/Hover")))


@pytest.fixture
def vector():
    made = []

    def make(**settings):
        made.append(gymnasium.make_vec(CARTPOLE, **{"num_envs": 4, **settings}))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


@pytest.mark.parametrize("name", SINGLE)
def test_check_env_passes(name):
    env = gymnasium.make(name)
    with warnings.catch_warnings():
        # what it says of Gymnasium's own classic control tasks too
        warnings.filterwarnings("ignore", ".*(infinity|symmetric and normalized).*")
        warnings.filterwarnings("ignore", ".*render_mode.*")
        check_env(env.unwrapped, skip_render_check=True)


def test_the_registry_knows_limits_and_thresholds():
    spec = gymnasium.spec(CARTPOLE)
    assert (spec.max_episode_steps, spec.reward_threshold) == (500, 475.0)
    headrace.rl.envs.gym.register()  # a second time changes nothing, and warns of nothing
    assert gymnasium.spec(CARTPOLE) is spec


def test_importing_by_name_is_enough():
    env = gymnasium.make("headrace.rl.envs.gym:headrace/Pendulum-v1")
    assert env.reset(seed=1)[0].shape == (3,)


def test_a_single_environment_is_truncated_where_gymnasium_is_told():
    for limit, asked in ((200, None), (7, 7), (300, 300)):
        env = gymnasium.make("headrace/MountainCar-v0", max_episode_steps=asked)
        env.reset(seed=0)
        steps = next(t for t in range(1, 1000) if env.step(1)[3])
        assert steps == limit


def test_spaces_and_metadata(vector):
    envs = vector()
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.single_action_space == gymnasium.spaces.Discrete(2)
    assert envs.observation_space.shape == (4, 4)
    assert envs.spec.id == CARTPOLE
    obs, info = envs.reset(seed=1)
    assert envs.observation_space.contains(obs)
    assert info == {}
    obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
    assert envs.observation_space.contains(obs)
    assert (reward.shape, terminated.dtype, truncated.dtype, info) == ((4,), np.bool_, np.bool_, {})


def test_vectors_of_gymnasium_and_ours_live_the_same_lives(vector):
    """Gymnasium's SyncVectorEnv over single environments of ours, in each autoreset mode: the same flags at the same
    steps. (What each draws at a reset differs: there every environment has a seed of its own.)"""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        ours = vector(autoreset_mode=mode, max_episode_steps=6)
        theirs = gymnasium.make_vec(
            CARTPOLE,
            4,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
            max_episode_steps=6,
        )
        ours.reset(seed=0)
        theirs.reset(seed=0)
        for _ in range(40):
            action = np.array([0, 1, 0, 1])  # no pole falls within 6 steps
            a, b = ours.step(action), theirs.step(action)
            for mine, other in zip(a[1:4], b[1:4], strict=True):
                np.testing.assert_array_equal(mine, other)
            assert set(a[4]) == set(b[4])
            if "final_obs" in a[4]:
                assert a[4]["final_obs"].dtype == b[4]["final_obs"].dtype == object
                assert [o.shape for o in a[4]["final_obs"]] == [o.shape for o in b[4]["final_obs"]]
                np.testing.assert_array_equal(a[4]["_final_obs"], b[4]["_final_obs"])
        theirs.close()


def test_same_step_hands_over_the_final_observation(vector, compiled):
    envs = vector(autoreset_mode="SameStep", num_envs=64)
    twin = BatchEnv(compiled(CARTPOLE), 64, autoreset=Autoreset.DISABLED)
    obs, _ = envs.reset(seed=3)
    np.testing.assert_array_equal(twin.reset(3), obs)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        action = rng.integers(2, size=64)
        obs, _, terminated, truncated, info = envs.step(action)
        last = twin.step(action).obs.copy()
        ended = terminated | truncated
        assert ("final_obs" in info) == ended.any()
        if ended.any():
            np.testing.assert_array_equal(info["_final_obs"], ended)
            np.testing.assert_array_equal(info["_final_info"], ended)
            assert [row is not None for row in info["final_obs"]] == ended.tolist()
            np.testing.assert_array_equal(np.stack(info["final_obs"][ended]), last[ended])
            twin.restart(ended)
            ends += int(ended.sum())
        np.testing.assert_array_equal(obs, twin.obs)
    assert ends > 60


def test_disabled_wants_a_reset_of_what_has_ended(vector):
    envs = vector(autoreset_mode=AutoresetMode.DISABLED, max_episode_steps=6)
    envs.reset(seed=1)
    for _ in range(6):
        truncated = envs.step([0, 1, 0, 1])[3]
    assert truncated.all()
    with pytest.raises(InvalidInput, match="environment 0 has ended"):
        envs.step([0, 1, 0, 1])
    envs.reset(options={"reset_mask": np.array([True, True, True, False])})
    with pytest.raises(InvalidInput, match="environment 3 has ended"):
        envs.step([0, 1, 0, 1])
    obs, _ = envs.reset(options={"reset_mask": np.array([False, False, False, True])})
    assert not envs.step([0, 1, 0, 1])[3].any()
    assert np.abs(obs).max() < 0.06


def test_seeds(vector):
    first, again, other = vector(), vector(), vector()
    np.testing.assert_array_equal(first.reset(seed=5)[0], again.reset(seed=5)[0])
    assert not np.array_equal(first.reset(seed=5)[0], other.reset(seed=6)[0])
    np.testing.assert_array_equal(first.reset(seed=5)[0], again.reset(seed=5)[0])
    follow, follow_again = first.reset()[0], again.reset()[0]  # without a seed: the next episodes of the same stream
    np.testing.assert_array_equal(follow, follow_again)
    assert not np.array_equal(follow, first.reset(seed=5)[0])
    assert not np.array_equal(vector().reset()[0], vector().reset()[0])  # never seeded: different
    assert first.np_random_seed == 5


def test_what_is_refused(vector):
    envs = vector()
    for arguments in ({"seed": [1, 2, 3, 4]}, {"seed": -1}, {"options": {"low": 0.1}}):
        with pytest.raises(InvalidInput):
            envs.reset(**arguments)
    with pytest.raises(InvalidInput, match="not with the first reset"):
        vector().reset(options={"reset_mask": np.ones(4, np.bool_)})
    envs.reset(seed=0)
    with pytest.raises(InvalidInput, match="environment 2: expected 0 … 1, got 3"):
        envs.step([0, 1, 3, 0])
    for settings in ({"autoreset_mode": "Never"}, {"render_mode": "human"}, {"num_envs": 0}, {"threads": 0}):
        with pytest.raises(InvalidInput):
            vector(**settings)
    with pytest.raises(InvalidInput, match="unknown options"):
        gymnasium.make(CARTPOLE).reset(options={"low": 1})
    single = gymnasium.make(CARTPOLE, disable_env_checker=True)
    single.reset(seed=0)
    with pytest.raises(InvalidInput, match="expected 0 … 1, got 2"):
        single.step(2)


def test_arrays_are_the_callers_own_unless_asked(vector):
    envs = vector()
    first = envs.reset(seed=1)[0]
    kept = first.copy()
    second = envs.step([0, 1, 0, 1])[0]
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    lent = vector(copy=False)
    assert np.shares_memory(lent.reset(seed=1)[0], lent.step([0, 1, 0, 1])[0])


def test_gymnasiums_wrappers_work(vector):
    envs = RecordEpisodeStatistics(NormalizeObservation(vector(num_envs=16)))
    envs.reset(seed=0)
    lengths = []
    for _ in range(80):
        info = envs.step(envs.action_space.sample())[4]
        if "episode" in info:
            lengths += info["episode"]["l"][info["_episode"]].tolist()
    assert len(lengths) > 16
    assert 5 < np.mean(lengths) < 60


def test_parameters_reach_the_environment(vector):
    heavy, light = vector(params={"gravity": 30.0}), vector()
    heavy.reset(seed=1)
    light.reset(seed=1)
    for _ in range(3):
        a, b = heavy.step([0, 1, 0, 1])[0], light.step([0, 1, 0, 1])[0]
    assert not np.array_equal(a, b)


def test_pictures(vector):
    envs = vector(render_mode="rgb_array", num_envs=2)
    envs.reset(seed=0)
    frames = envs.render()
    assert [f.shape for f in frames] == [(300, 600, 3)] * 2
    assert frames[0].dtype == np.uint8
    assert (frames[0] != 255).any()
    assert vector().render() is None
    single = gymnasium.make("headrace/FourRooms-v0", render_mode="rgb_array")
    single.reset(seed=0)
    assert single.render().shape == (400, 400, 3)
