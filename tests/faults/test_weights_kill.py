"""kill -9 at every step of keeping weights: no half file is ever taken, and the next load cleans up and goes on."""

import subprocess
import sys
import textwrap

# The driver forks one child for each n; the child kills itself at its n-th step that touches the cache, until a child
# survives because it had no n-th step.
DRIVER = textwrap.dedent(
    """
    import os, shutil, signal, sys
    from pathlib import Path
    import numpy as np
    from headrace.llm.weights import WeightCache

    EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.utime"}
    root = Path(sys.argv[1])
    data = np.arange(100_000, dtype=np.uint8)

    def build(writer):
        for name in "abc":
            writer.write(name, data)
            step("written")

    def step(where):
        global seen
        seen += 1
        if seen == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        if event in EVENTS and any(str(root) in str(a) for a in arguments):
            step(event)

    stop_at, seen = 0, 0
    def killed_at(n):
        global seen, stop_at
        pid = os.fork()
        if pid == 0:
            seen, stop_at = 0, n
            sys.addaudithook(hook)
            WeightCache(root, 1 << 30).open("key", build)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    n = 1
    while killed_at(n):
        cache = WeightCache(root, 1 << 30)
        for entry in cache.entries():
            cache.verify(entry.key)
        file = cache.open("key", build)
        assert all((file[name] == data).all() for name in "abc")
        left = sorted(path.name for path in cache.folder.iterdir())
        # A kill after the file was there may leave the lock's file, which holds nobody up.
        assert left in (["key.pack"], [".lock-key", "key.pack"]), (n, left)
        shutil.rmtree(root)
        n += 1
    print(n)
    """
)


def test_killed_at_every_step(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, tmp_path / "cache"], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 8, "the driver saw too few steps"
