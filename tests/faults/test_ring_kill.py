"""kill -9 of ring users at random moments: nobody hangs, no message is torn, doubled or out of order."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from headrace.core.ring import MpmcRing, SpscRing
from headrace.errors import Unavailable

TORTURE = Path(__file__).with_name("ring_torture.py")


@pytest.mark.parametrize(
    ("kind", "seed", "producers", "consumers"),
    [("SpscRing", 1, 1, 1), ("SpscRing", 2, 1, 1), ("MpmcRing", 3, 1, 1), ("MpmcRing", 4, 3, 3), ("MpmcRing", 5, 4, 1)],
)
def test_torture(kind, seed, producers, consumers, tmp_path):
    arguments = [kind, seed, 1.5, producers, consumers, tmp_path]
    with subprocess.Popen(
        [sys.executable, str(TORTURE), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            output, _ = driver.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            pytest.fail(f"somebody hangs: {driver.communicate()[0]}")
    assert driver.returncode == 0, output
    print(output)


def test_a_thread_that_waits_at_exit_neither_aborts_the_process_nor_leaves_the_name():
    code = """if True:
        import threading, time
        from headrace.core.ring import MpmcRing
        from headrace.core.pool import TensorPool
        ring, pool = MpmcRing.create(slots=2, slot_bytes=8), TensorPool(limit_bytes=4096)
        lease = pool.lease(4096)
        for wait in (ring.pop, ring.peek, lambda: pool.lease(1, timeout_s=None)):
            threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.2)
        print(ring.name)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(f"/dev/shm/headrace-{done.stdout.strip()}").exists()


@pytest.fixture
def child():
    """A function that runs `body` in a forked child and returns the pid; whatever is left at the end is killed."""
    pids = []

    def start(body):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of NumPy's are no danger to these children
            pid = os.fork()
        if pid == 0:
            try:
                body()
            finally:
                os._exit(1)
        pids.append(pid)
        return pid

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie must count as dead


@pytest.mark.parametrize("kind", [SpscRing, MpmcRing], ids=lambda kind: kind.__name__)
def test_a_reader_is_told_when_the_writers_are_dead_and_serves_their_successors(kind, child):
    ring = kind.create(slots=8, slot_bytes=16)

    def write():
        own = kind.attach(ring.name)
        own.push(b"last words")
        own.reserve()  # and never commits
        time.sleep(60)

    for _ in range(3):
        pid = child(write)
        assert ring.pop(timeout_s=30) == b"last words"
        kill(pid)
        with pytest.raises(Unavailable, match="producer has died"):
            ring.pop(timeout_s=30)


@pytest.mark.parametrize("kind", [SpscRing, MpmcRing], ids=lambda kind: kind.__name__)
def test_a_writer_is_told_when_the_readers_are_dead(kind, child):
    ring = kind.create(slots=2, slot_bytes=16)

    def read():
        own = kind.attach(ring.name)
        own.pop()
        os.kill(os.getpid(), signal.SIGSTOP)

    ring.push(b"1")
    pid = child(read)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    assert ring.push_many([b"2", b"3"]) == 2  # a stopped reader is alive
    assert not ring.try_push(b"4")
    kill(pid)
    with pytest.raises(Unavailable, match="consumer has died"):
        ring.push(b"4", timeout_s=30)


def test_a_poller_gets_past_a_dead_claim(child):
    """try_pop alone, without ever waiting, finds the messages behind a slot whose claimant was killed."""
    ring = MpmcRing.create(slots=8, slot_bytes=16)

    def claim():
        own = MpmcRing.attach(ring.name)
        own.reserve()
        os.kill(os.getpid(), signal.SIGSTOP)

    pid = child(claim)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    ring.push(b"behind")
    assert ring.try_pop() is None
    kill(pid)
    deadline = time.monotonic() + 30
    message = None
    while message is None and time.monotonic() < deadline:
        message = ring.try_pop()
    assert message == b"behind"
