"""kill -9 of producers in the middle of everything: every row drawn is one that was pushed, and nobody waits."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.rl.buffers import Field, PrioritisedReplay, ReplayBuffer

PRODUCER = Path(__file__).with_name("replay_producer.py")
FIELDS = (Field("pixels", (300,), np.uint8), Field("uid", (), np.int64), Field("number", (), np.int64), Field("crc"))


class Producers:
    """Processes that push without end, each with a number of its own."""

    def __init__(self, name):
        self.name, self.living, self.uids = name, [], iter(range(1_000_000))

    def start(self):
        self.living.append(subprocess.Popen([sys.executable, str(PRODUCER), self.name, str(next(self.uids))]))

    def kill_one(self, dice):
        victim = self.living.pop(dice.randrange(len(self.living)))
        victim.send_signal(signal.SIGKILL)
        if dice.random() < 0.5:
            os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)  # a zombie must count as dead
        else:
            victim.wait()
        return victim

    def stop(self, zombies):
        for process in [*self.living, *zombies]:
            if process.returncode is None:
                process.kill()
            process.wait()


def sums(batch):
    pixels = batch["pixels"].astype(np.int64)
    return ((pixels * np.arange(1, 301)).sum(1) + batch["uid"] * 7 + batch["number"]) % 65521


def check(batch):
    """Every row belongs together; a number in a row is a number once pushed, never a mixture of two."""
    assert (batch["crc"] == sums(batch)).all()
    assert (batch.sequences >= 0).all()


@pytest.mark.parametrize(("kind", "seed"), [(ReplayBuffer, 1), (PrioritisedReplay, 2)])
def test_kills_at_random(kind, seed):
    dice = random.Random(seed)
    buffer = kind(FIELDS, 700, seed=seed)
    producers, zombies = Producers(buffer.name), []
    try:
        for _ in range(3):
            producers.start()
        deadline = time.monotonic() + 60
        while len(buffer) < 700 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(buffer) == 700
        seen = set()
        for _ in range(10):
            until = time.monotonic() + dice.uniform(0.02, 0.1)
            while time.monotonic() < until:
                batch = buffer.sample(64)
                check(batch)
                seen.update(batch["uid"].tolist())
                if kind is PrioritisedReplay:
                    buffer.update_priorities(batch, np.full(64, dice.random(), np.float32))
            zombies.append(producers.kill_one(dice))
            producers.start()
            before = buffer.window[1]
            patience = time.monotonic() + 30
            while buffer.window[1] < before + 1500 and time.monotonic() < patience:
                check(buffer.sample(8))
            assert buffer.window[1] >= before + 1500, "the survivors do not get on"
            found = buffer.check_integrity()
            assert sum(found) == 700
        assert len(seen) >= 3
        while producers.living:
            zombies.append(producers.kill_one(dice))
        left = buffer.check_integrity()
        assert left.in_flight == 0
        recovered = buffer.stats.recovered
        pushed = 0
        while pushed < 1500:
            numbers = np.arange(100)
            rows = {"pixels": np.zeros((100, 300), np.uint8), "uid": numbers * 0, "number": numbers, "crc": numbers}
            pushed += buffer.push(**{**rows, "crc": numbers.astype(np.float32)})
        assert buffer.check_integrity() == (700, 0, 0, 0)
        assert buffer.stats.recovered == recovered + left.abandoned
        assert buffer.stats.dropped == 0
        every = buffer.gather(np.arange(700))
        check(every)
        assert (every["uid"] == 0).all()
    finally:
        producers.stop(zombies)


def test_a_killed_owner_leaves_the_others_what_they_have():
    code = """if True:
        import sys, numpy as np
        from headrace.rl.buffers import Field, ReplayBuffer
        buffer = ReplayBuffer([Field("x")], 10)
        buffer.push(x=np.arange(10, dtype=np.float32))
        print(buffer.name, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        buffer = ReplayBuffer.attach(owner.stdout.readline().strip())
        owner.kill()
    assert set(buffer.sample(200)["x"].tolist()) == set(range(10))
    buffer.push(x=np.full(3, 50, np.float32))
    assert (buffer.gather(np.arange(3))["x"] == 50).all()
    successor = ReplayBuffer([Field("y")], 5, name=buffer.name)  # the dead one's name is free again
    assert successor.name == buffer.name
    assert len(buffer) == 10
