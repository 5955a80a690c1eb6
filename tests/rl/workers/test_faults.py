"""Environments that raise, crash, hang, leak, or give nonsense, in real processes: the others never notice."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import numpy as np
import pytest

from headrace.core.telemetry import Registry, render
from headrace.errors import StageFailed, Unavailable
from headrace.rl.workers.restarts import RestartPolicy
from headrace.rl.workers.tally import WorkerMetrics
from headrace.rl.workers.vector import ProcessVectorEnv

from .conftest import Counter

# What goes wrong -> the kind that is counted, words of the reason, settings.
FAULTS = {
    "raise": ("error", "raised KeyError: 'the cable is loose'", {}),
    "exit": ("error", "raised SystemExit: 3", {}),
    "_exit": ("crash", "its worker exited with status 7", {}),
    "kill": ("crash", "its worker killed by SIGKILL", {}),
    "segfault": ("crash", "its worker killed by SIGSEGV", {}),
    "hang": ("hang", "it has taken more than 0.3 s", {"step_timeout_s": 0.3}),
    "sleep": ("hang", "it has taken more than 0.3 s", {"step_timeout_s": 0.3}),
    "leak": ("memory", "MiB of memory, more than 300 MiB", {"rss_limit_bytes": 300 << 20}),
    "shape": ("shape", "expected the shape [3], got [4]", {}),
    "dtype": ("shape", "expected float32, got complex64", {}),
    "text": ("error", "could not convert string to float", {}),
}


def steps(env, count):
    for _ in range(count):
        env.step([0] * env.num_envs)


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_truncates_its_episode_and_the_others_go_on(wrong, tmp_path):
    """Environment 1 of 4 (two processes) fails once in its third step; nothing else is lost, and all go on after it."""
    kind, reason, settings = FAULTS[wrong]
    once = tmp_path / "once"
    bad = partial(Counter, 1, wrong=wrong, once=once)
    if wrong in ("shape", "dtype"):
        bad = partial(Counter, 1, wrong=wrong)  # always, in the third step of each episode
    registry = Registry()
    fns = [partial(Counter, 0), bad, partial(Counter, 2), partial(Counter, 3)]
    with ProcessVectorEnv(fns, workers=2, metrics=WorkerMetrics(registry), **settings) as env:
        env.reset(seed=0)
        env.step([0] * 4)
        if wrong == "leak":  # the limit is looked at while somebody waits
            env.set_attr("delay_s", 0.05)
        env.step([0] * 4)
        if wrong == "leak":
            told = {}
            while "fault" not in told:
                obs, rewards, terminated, truncated, told = env.step([0, 2, 0, 0])
        else:
            obs, rewards, terminated, truncated, told = env.step([0, 2, 0, 0])
        assert truncated[1]
        assert not terminated[1]
        assert rewards[1] == 0.0
        assert reason in told["fault"][1]
        if wrong != "leak":
            assert told["fault"][1].startswith("environment 1, step 3, action 2: ")
            assert rewards[2:].tolist() == [1.0, 1.0]
            assert obs[2:, 2].tolist() == [3, 3]
        assert not truncated[2:].any()
        assert env.tally.faults[kind] == 1
        died = kind in ("crash", "hang", "memory")
        assert sum(env.tally.restarts.values()) == died
        # The other environment of a process that died goes with it: at once, or (its step was done) with the next one.
        obs, rewards, terminated, truncated, told = env.step([0] * 4)
        assert rewards[1] == 0.0
        assert obs[1, 2] == 0  # a new episode
        for _ in range(12):
            obs, *_ = env.step([0] * 4)
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert env.tally.lost_episodes >= 1 + died
        assert f'headrace_rl_worker_faults_total{{kind="{kind}"}} ' in render(registry)[0].decode()


def test_the_reason_carries_the_remote_traceback():
    with ProcessVectorEnv([partial(Counter, wrong="raise")], workers=1, on_fault="raise") as env:
        env.reset()
        env.step([0])
        env.step([0])
        with pytest.raises(StageFailed, match=r"environment 0.*step 3, action 1: raised KeyError") as caught:
            env.step([1])
        assert "the cable is loose" in str(caught.value.__cause__)
        assert "in _misbehave" in str(caught.value.__cause__)
        obs, _ = env.reset()
        assert obs[0, 2] == 0
        env.step([0])


@pytest.mark.parametrize("wrong", ["raise", "_exit"])
def test_same_step_gives_the_last_observation_and_the_first(wrong, tmp_path):
    bad = partial(Counter, 1, wrong=wrong, once=tmp_path / "once")
    with ProcessVectorEnv([Counter, bad], workers=2, autoreset_mode="SameStep") as env:
        env.reset()
        for _ in range(2):
            env.step([0, 0])
        obs, rewards, _, truncated, infos = env.step([0, 0])
        assert truncated.tolist() == [False, True]
        assert rewards.tolist() == [1.0, 0.0]
        assert obs[1, 2] == 0
        assert infos["final_obs"][1].tolist()[2] == 2
        assert infos["_final_obs"].tolist() == [False, True]
        assert env.pool.board.lengths.tolist() == [3, 3]
        assert env.pool.board.returns.tolist() == [3.0, 2.0]
        assert "environment 1, step 3" in infos["fault"][1]
        obs, *_ = env.step([0, 0])
        assert obs[1, 2] == 1


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("wrong", ["raise", "kill"])
def test_a_reset_that_fails_is_tried_again_and_cuts_no_episode(mode, wrong, tmp_path):
    """It fails in the reset after the first episode: that one ended by itself, the next had not begun."""
    bad = partial(Counter, 1, wrong=wrong, at=0, after=1, once=tmp_path / "once")
    with ProcessVectorEnv([partial(Counter, 0, length=100), bad], workers=2, autoreset_mode=mode) as env:
        env.reset()
        ends = []
        for _ in range(12):
            _, _, terminated, truncated, infos = env.step([0, 0])
            assert not truncated.any()
            if terminated[1]:
                ends.append(int(env.pool.board.lengths[1]))
                if mode == "SameStep":
                    assert infos["final_obs"][1][2] == 5
        assert ends == [5, 5]
        assert env.tally.lost_episodes == 0
        assert sum(env.tally.faults.values()) == 1


def test_a_process_killed_between_steps_is_replaced():
    with ProcessVectorEnv([partial(Counter, i, length=50) for i in range(4)], workers=2) as env:
        env.reset()
        env.step([0] * 4)
        pid = env.pool.pids[0]
        os.kill(pid, signal.SIGKILL)
        lost = 0
        for _ in range(10):
            _, _, _, truncated, infos = env.step([0] * 4)
            assert not truncated[2:].any()
            lost += truncated.sum()
            if truncated.any():
                assert "SIGKILL" in infos["fault"][0]
        assert lost == env.tally.lost_episodes == 2
        assert env.tally.restarts == {"crash": 1}
        assert env.pool.pids[0] not in (pid, None)


def test_random_kills_lose_no_count():
    """Steps, episodes and lengths agree with what the trainer sees, whatever is killed when."""
    rng = np.random.default_rng(0)
    policy = RestartPolicy(limit=100, backoff_s=0.0)
    with ProcessVectorEnv(
        [partial(Counter, i, length=7) for i in range(4)], workers=2, autoreset_mode="SameStep", restarts=policy
    ) as env:
        env.reset()
        lengths, episodes, cut = np.zeros(4, int), 0, 0
        for step in range(600):
            if step % 100 == 50:
                time.sleep(rng.uniform(0, 0.002))
                os.kill(env.pool.pids[rng.integers(2)], signal.SIGKILL)
            obs, _, terminated, truncated, infos = env.step([0] * 4)
            lengths += 1
            ended = terminated | truncated
            assert (env.pool.board.lengths[ended] == lengths[ended]).all()
            assert (lengths[terminated] == 7).all()
            assert (obs[ended, 2] == 0).all()
            assert (obs[~ended, 2] == lengths[~ended]).all()
            episodes += ended.sum()
            cut += truncated.sum()
            if truncated.any():
                assert (np.array([text is not None for text in infos["fault"]]) == truncated).all()
            lengths[ended] = 0
        assert cut == env.tally.lost_episodes == 2 * 6
        assert env.tally.restarts == {"crash": 6}


def test_slow_episodes_and_a_hung_one_do_not_stop_the_others(tmp_path):
    fns = [partial(Counter, i, length=1000) for i in range(2)]
    bad = partial(Counter, 2, wrong="sleep", at=1, once=tmp_path / "once")
    with ProcessVectorEnv([*fns, bad], workers=3, step_timeout_s=0.5) as env:
        env.async_reset()
        seen, told = {0: 0, 1: 0, 2: 0}, ""
        done = env.recv(3)
        env.send([0, 0, 0], done.ids)
        until_s = time.monotonic() + 60
        while not told:
            ready = env.recv(1, timeout_s=30)
            for i in ready.ids.tolist():
                seen[i] += 1
            if "fault" in ready.infos:
                told = ready.infos["fault"][2]
            env.send([0] * len(ready.ids), ready.ids)
            assert time.monotonic() < until_s
        assert "it has taken more than 0.5 s" in told
        assert seen[0] > 20
        assert seen[1] > 20
        env.recv(3)


def test_one_that_always_fails_is_given_up_with_its_reason():
    policy = RestartPolicy(limit=2, backoff_s=0.01)
    with ProcessVectorEnv([partial(Counter, wrong="_exit", at=1)], workers=1, restarts=policy) as env:
        env.reset()
        with pytest.raises(Unavailable, match=r"more than 2 times.*exited with status 7"):
            steps(env, 20)
        with pytest.raises(Unavailable, match="more than 2 times"):
            env.reset()
    with ProcessVectorEnv([partial(Counter, wrong="raise", at=1)], workers=1, restarts=policy) as env:
        env.reset()
        with pytest.raises(Unavailable, match="environment 0 failed more than 2 times") as caught:
            steps(env, 20)
        assert "the cable is loose" in str(caught.value.__cause__)


def test_a_process_that_never_starts_is_told():
    with pytest.raises(StageFailed, match="exited with status 7"):
        ProcessVectorEnv([partial(os._exit, 7)], workers=1)
    with pytest.raises(StageFailed, match="starting, has taken more than"):
        ProcessVectorEnv([partial(time.sleep, 1000)], workers=1, start_timeout_s=1.0)


@pytest.mark.parametrize("wrong", ["nan", "inf", "nan observation"])
def test_bad_numbers_stop_drop_or_clip(wrong):
    fns = [partial(Counter, 0, length=4), partial(Counter, 1, length=4, wrong=wrong, at=2)]
    with ProcessVectorEnv(fns, workers=1) as env:
        env.reset()
        env.step([0, 0])
        told = "an observation" if "observation" in wrong else f"the reward {'nan' if wrong == 'nan' else '-inf'}"
        with pytest.raises(StageFailed, match=f"environment 1.*step 2, action 1: gave {told}"):
            env.step([0, 1])
        env.reset()
        assert not env.tally.restarts
    with ProcessVectorEnv(fns, workers=1, bad_values="drop") as env:
        env.reset()
        env.step([0, 0])
        obs, rewards, terminated, truncated, infos = env.step([0, 0])
        assert np.isfinite(obs).all()
        assert rewards.tolist() == [1.0, 0.0]
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
        assert "gave" in infos["fault"][1]
        assert env.tally.lost_episodes == 1
    with ProcessVectorEnv(fns, workers=1, bad_values="clip", bad_limit=3.0) as env:
        env.reset()
        env.step([0, 0])
        obs, rewards, terminated, truncated, infos = env.step([0, 0])
        assert rewards.tolist() == [1.0, {"nan": 0.0, "inf": -3.0}.get(wrong, 1.0)]
        assert obs[1, 1] == (0.0 if "observation" in wrong else 1.0)
        assert not truncated.any()
        assert env.tally.faults == {"bad_value": 1}
