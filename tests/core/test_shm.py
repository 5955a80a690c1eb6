import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from headrace.core import shm
from headrace.errors import Conflict, IntegrityError, InvalidInput, NotFound

DEV_SHM = Path("/dev/shm")


def in_another_process(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_processes_share_bytes_and_only_the_owner_removes_the_name():
    segment = shm.create(None, 1000)
    segment.array()[:4] = [1, 2, 3, 4]
    done = in_another_process(
        """
        import sys
        from headrace.core import shm
        segment = shm.attach(sys.argv[1])
        data = segment.array()
        assert data[:4].tolist() == [1, 2, 3, 4] and not segment.owner
        data[999] = 9
        """,
        segment.name,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert segment.array()[999] == 9
    assert shm.attach(segment.name).size == 1000  # the other process has ended, the name is still here
    name = segment.name
    del segment
    with pytest.raises(NotFound, match=name):
        shm.attach(name)


def test_arrays_keep_the_memory_alive():
    segment = shm.create(None, 64)
    data = segment.array()
    del segment
    data[:] = 7
    assert data.sum() == 64 * 7
    assert data.dtype == np.uint8


def test_a_taken_name_is_a_conflict_and_bad_names_are_named():
    segment = shm.create(None, 64)
    with pytest.raises(Conflict, match=segment.name):
        shm.create(segment.name, 64)
    for name in ("a/b", "../x", "sp ace", "x" * 201):
        with pytest.raises(InvalidInput, match="shared memory name"):
            shm.create(name, 64)
    with pytest.raises(InvalidInput, match="size"):
        shm.create(None, 0)


def test_what_a_killed_owner_left_is_gone_at_the_next_create():
    code = """
        import os, signal, sys
        from headrace.core import shm
        kept = shm.create(sys.argv[1], 4096)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    name = "test-orphan-of-a-killed-owner"
    assert in_another_process(code, name).returncode == -9
    assert (DEV_SHM / f"headrace-{name}").exists()
    mine = shm.create(None, 64)
    assert not (DEV_SHM / f"headrace-{name}").exists()
    assert (DEV_SHM / f"headrace-{mine.name}").exists()
    assert in_another_process(code, name).returncode == -9
    assert shm.create(name, 64).owner  # the same name again replaces it


def test_foreign_files_are_refused_and_left_alone():
    path = DEV_SHM / "headrace-test-foreign-file"
    path.write_bytes(b"x" * 4096)
    try:
        with pytest.raises(IntegrityError, match="test-foreign-file"):
            shm.attach("test-foreign-file")
        shm.sweep()
        assert path.exists()
    finally:
        path.unlink()
