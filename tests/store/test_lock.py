import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import Conflict
from headrace.store.lock import locked


def test_the_lock_file_is_there_only_while_held_and_names_its_holder(tmp_path):
    path = tmp_path / "locks/m"
    with locked(path, "m"):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert not path.exists()


def test_it_is_released_when_the_block_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "m", "m"):
        raise ZeroDivisionError
    with locked(tmp_path / "m", "m", wait_s=0.0):
        pass


def test_what_a_killed_holder_left_is_no_lock(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path; from headrace.store.lock import locked\n"
        "with locked(Path(sys.argv[1]), 'm'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m")], timeout=60, check=False)
    assert done.returncode == -9
    assert (tmp_path / "m").exists()
    with locked(tmp_path / "m", "m", wait_s=0.0):
        pass


def test_an_unknown_holder_is_still_respected(tmp_path):
    with (tmp_path / "m").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.raises(Conflict, match="m is being changed by another process"),
            locked(tmp_path / "m", "m", wait_s=0.0),
        ):
            pass


def test_processes_exclude_each_other(tmp_path):
    """Each adds 1 to a number 100 times, by reading and writing it: a lost update shows two were inside at once."""
    script = (
        "import sys; from pathlib import Path; import headrace.store.lock as l\n"
        "l._POLL_S = 0.0005\n"
        "lock, number = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "for _ in range(100):\n"
        "    with l.locked(lock, 'n'):\n"
        "        number.write_text(str(int(number.read_text()) + 1))\n"
    )
    (tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", script, str(tmp_path / "locks/m"), str(tmp_path / "number")]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert (tmp_path / "number").read_text() == "300"


def test_a_working_directory_that_is_gone_is_an_error_and_no_endless_loop(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError), locked(Path("locks/m"), "m"):
        pass
