"""kill -9 at every step of a pull: the repository must be valid at once, and the next pull must finish the work."""

import os
import subprocess
import sys
import textwrap

import pytest

# The driver forks one child for each n; the child kills itself at its n-th step that touches a path of the
# repository (creating, renaming, linking, opening, removing), until a child survives because it had no n-th step.
DRIVER = textwrap.dedent(
    """
    import os, shutil, signal, sys
    from pathlib import Path
    from headrace.errors import HeadraceError
    from headrace.store.pull import pull_model
    from headrace.store.verify import verify
    from headrace.store.versions import ModelStore

    EVENTS = {"open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
    work, scenario = Path(sys.argv[1]), sys.argv[2]
    source = work / "source"

    def fill(content):
        shutil.rmtree(source, ignore_errors=True)
        (source / "sub").mkdir(parents=True)
        (source / "model.onnx").write_bytes(content * 1000)
        (source / "sub" / "labels.txt").write_bytes(content)

    def pull(repository):
        return pull_model(repository, str(source), name="m")

    def prepare(root):
        repository = ModelStore(root)
        if scenario != "first":
            fill(b"old")
            pull(repository)
        if scenario == "repair":
            (repository.resolve("m") / "model.onnx").write_bytes(b"damaged")
        else:
            fill(b"new")
        return repository

    def killed_at(n, repository):
        pid = os.fork()
        if pid == 0:
            seen = 0
            def hook(event, arguments):
                nonlocal seen
                if event in EVENTS and any(str(repository.root) in str(a) for a in arguments):
                    seen += 1
                    if seen == n:
                        os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(hook)
            pull(repository)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    def check(repository, n):
        root = repository.root / "m"
        for version in repository.versions("m") if root.is_dir() else ():
            if scenario != "repair":
                verify(root / version)
        if scenario == "update":
            assert (repository.resolve("m") / "sub/labels.txt").read_bytes() in (b"old", b"new"), n
        if (root / "headrace.toml").exists() and scenario != "repair":
            verify(repository.resolve("m"))

    n, kills = 0, 0
    while True:
        n += 1
        repository = prepare(work / f"models{n}")
        died = killed_at(n, repository)
        if died:
            kills += 1
            check(repository, n)
            pull(repository)
        verify(repository.resolve("m"))
        expected = b"old" if scenario == "repair" else b"new"
        assert (repository.resolve("m") / "sub/labels.txt").read_bytes() == expected, n
        assert (repository.root / "m/headrace.toml").is_file(), n
        leftovers = [str(p) for p in repository.root.rglob(".*")]
        assert not leftovers, (n, leftovers)
        if not died:
            break
    print(kills)
    """
)


@pytest.mark.parametrize("scenario", ["first", "update", "repair"])
def test_a_pull_killed_anywhere_leaves_a_valid_repository_and_the_next_one_finishes(tmp_path, scenario):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), scenario],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


def test_a_pull_killed_inside_a_large_copy_is_swept_by_the_next(tmp_path):
    large = tmp_path / "large.onnx"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace", "pull", str(large), "--quiet", "--repo", str(tmp_path / "models")]
    )
    try:
        folder = tmp_path / "models/large"
        while child.poll() is None and not list(folder.glob(".install-*/large.onnx")):
            pass
    finally:
        child.kill()
        child.wait(30)
    assert child.returncode == -9
    assert not (folder / "current").exists()
    large.write_bytes(b"small")
    subprocess.run(
        [sys.executable, "-m", "headrace", "pull", str(large), "--repo", str(tmp_path / "models")],
        check=True,
        timeout=60,
    )
    assert (folder / "current/large.onnx").read_bytes() == b"small"
    assert [name for name in os.listdir(folder) if name.startswith(".")] == []
