"""Parents that die, are interrupted, fork or forget to close: no process and no shared memory outlives them."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import InvalidInput
from headrace.rl.workers.vector import ProcessVectorEnv

from .conftest import SHARED_MEMORY, Counter, left

SCRIPT = """
import os, signal, sys, threading, time
import gymnasium, numpy as np
from gymnasium import spaces
from headrace.errors import InvalidInput
from headrace.rl.workers.vector import ProcessVectorEnv

class Simple(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        HANG
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""


def script(body, hang="pass"):
    """A Python process running SCRIPT and `body`, in a group of its own, as a shell would start it."""
    text = SCRIPT.replace("HANG", hang) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def until(condition, timeout_s=20.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def gone(pid):
    """Whether the process has ended (somebody else's zombie counts)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("hang", ["pass", "while True: pass", "time.sleep(1000)"])
def test_no_orphans_and_no_shared_memory_after_kill_9(hang):
    body = """
    env = ProcessVectorEnv([Simple] * 4, workers=2)
    env.reset()
    env.send([0] * 4)
    time.sleep(0.1)
    print(*env.pool.pids, flush=True)
    time.sleep(1000)
    """
    parent = script(body, hang)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    mine = f"headrace-{parent.pid}-*"
    assert list(SHARED_MEMORY.glob(mine))
    parent.kill()
    parent.wait()
    until(lambda: all(map(gone, pids)))
    assert not list(SHARED_MEMORY.glob(mine))
    parent.stdout.close()
    parent.stderr.close()


def test_ctrl_c_reaches_the_parent_alone():
    body = """
    env = ProcessVectorEnv([Simple] * 4, workers=2)
    env.reset()
    pids = list(env.pool.pids)
    print("go", flush=True)
    interrupts = 0
    while interrupts < 3:
        try:
            while True:
                env.step([0] * 4)
        except KeyboardInterrupt:
            interrupts += 1
            env.reset()
            print("again", flush=True)
    env.step([0] * 4)
    assert env.pool.pids == pids and not env.tally.faults, env.tally.faults
    env.close()
    print("done", flush=True)
    """
    parent = script(body)
    assert parent.stdout.readline() == "go\n"
    for _ in range(3):
        time.sleep(0.1)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "again\n"
    output, errors = parent.communicate(timeout=60)
    assert (output, errors, parent.returncode) == ("done\n", "", 0)


class Interrupted(BaseException):
    """What the signal handler below raises, wherever the main thread is."""


def test_a_call_that_is_interrupted_anywhere_is_mended_by_a_reset():
    """Steps with infos longer than a slot, so that messages have many pieces."""

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    rng = random.Random(0)
    try:
        with ProcessVectorEnv([partial(Counter, i, length=3, talks=5000) for i in range(4)], workers=2) as env:
            env.reset()
            torn = 0
            for _ in range(60):
                args = (threading.main_thread().ident, signal.SIGUSR1)
                timer = threading.Timer(rng.uniform(0.0, 0.01), signal.pthread_kill, args)
                with contextlib.suppress(Interrupted):
                    timer.start()
                    while True:
                        env.step([0] * 4)
                timer.join()
                if env.pool._torn:
                    torn += 1
                    with pytest.raises(InvalidInput, match=r"interrupted: reset all|receive them, or reset"):
                        env.step([0] * 4)
                obs, _ = env.reset()
                assert obs[:, 2].tolist() == [0] * 4
                obs, rewards, *_ = env.step([0] * 4)
                assert obs[:, 0].tolist() == [0, 1, 2, 3]
                assert obs[:, 2].tolist() == [1] * 4
                assert rewards.tolist() == [1] * 4
            assert torn > 30
            assert not env.tally.faults
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_forked_copy_ends_nothing():
    body = """
    env = ProcessVectorEnv([Simple] * 2, workers=1)
    env.reset()
    if os.fork() == 0:
        env.close()
        sys.exit(0)
    os.wait()
    env.step([0] * 2)
    assert not env.tally.faults
    env.close()
    print("done")
    """
    output, _ = script(body).communicate(timeout=60)
    assert output == "done\n"


def test_the_end_of_the_interpreter_closes():
    body = """
    env = ProcessVectorEnv([Simple] * 2, workers=2)
    env.reset()
    print(*env.pool.pids)
    """
    parent = script(body)
    output, errors = parent.communicate(timeout=60)
    assert (errors, parent.returncode) == ("", 0)
    until(lambda: all(gone(int(pid)) for pid in output.split()))
    assert not list(SHARED_MEMORY.glob(f"headrace-{parent.pid}-*"))


def test_a_pool_that_is_dropped_ends_its_processes():
    before = left()
    env = ProcessVectorEnv([Counter] * 2, workers=2)
    env.reset()
    assert len(left() - before) > 2
    del env
    gc.collect()
    assert left() == before


def test_the_thread_that_made_it_may_end():
    made = []
    thread = threading.Thread(target=lambda: made.append(ProcessVectorEnv([Counter] * 2, workers=1)))
    thread.start()
    thread.join()
    env = made.pop()
    time.sleep(0.1)
    env.reset()
    env.step([0, 0])
    assert not env.tally.faults
    env.close()


def test_a_hung_environment_does_not_hold_up_close():
    env = ProcessVectorEnv([Counter] * 2, workers=2, close_timeout_s=0.2)
    env.reset()
    env.set_attr("delay_s", 1000.0)
    env.send([0, 0])
    pids = list(env.pool.pids)
    env.close()
    assert all(map(gone, pids))
