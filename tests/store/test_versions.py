import os
import threading

import pytest

from headrace.errors import ConfigError, Conflict, HeadraceError, IntegrityError, InvalidInput, NotFound
from headrace.store.verify import verify
from headrace.store.versions import ModelStore, default_root

ONE, TWO = {"a.bin": b"one"}, {"a.bin": b"two"}


def hidden(repository):
    return [str(path) for path in repository.root.rglob(".*")]


def test_an_installed_version_is_complete_named_by_content_and_leaves_nothing_else(repository, install):
    version = install("m", ONE)
    manifest = verify(repository.resolve("m"))
    assert version == manifest.digest[:12]
    assert repository.names() == ["m"]
    assert repository.versions("m") == [version]
    assert repository.current("m") == version
    assert repository.resolve(f"m:{version}") == repository.resolve(f"m@{version}") == repository.root / "m" / version
    assert not hidden(repository)


def test_info_of_models_and_pipelines(repository, install):
    version = install("m", ONE)
    (repository.root / "p").mkdir()
    (repository.root / "p/headrace.toml").write_text("")
    (repository.root / "empty").mkdir()
    assert repository.names() == ["m", "p"]
    info = repository.info("m")
    assert (info.kind, info.current, info.versions, info.size_bytes, info.source) == (
        "model",
        version,
        [version],
        3,
        "test://",
    )
    assert repository.info("p").kind == "pipeline"


def test_the_same_content_is_kept_under_the_name_it_has(repository, install, fill_with):
    install("m", ONE, "v1")
    inode = (repository.root / "m/v1").stat().st_ino
    with repository.edit("m") as model:
        again = model.install(fill_with(ONE))
    assert (again.status, again.manifest.version) == ("unchanged", "v1")
    assert (repository.root / "m/v1").stat().st_ino == inode
    install("m", ONE, "v2", switch=False)
    assert repository.versions("m") == ["v1", "v2"]


def test_a_name_that_belongs_to_other_content_is_a_conflict(repository, install):
    install("m", ONE, "v1")
    with pytest.raises(Conflict, match="'v1' of model 'm' holds other content"):
        install("m", TWO, "v1")
    assert (repository.resolve("m") / "a.bin").read_bytes() == b"one"
    assert not hidden(repository)


@pytest.mark.parametrize("damage", ["file", "manifest"])
def test_a_damaged_version_is_replaced(repository, install, fill_with, damage):
    folder = repository.root / "m" / install("m", ONE)
    (folder / {"file": "a.bin", "manifest": "manifest.json"}[damage]).write_bytes(b"bad")
    with repository.edit("m") as model:
        assert model.install(fill_with(ONE)).status == "repaired"
    verify(folder)
    assert not hidden(repository)


def test_a_version_of_a_newer_format_is_never_replaced(repository, install, fill_with):
    folder = repository.root / "m" / install("m", ONE)
    (folder / "manifest.json").write_text('{"format": 2}')
    with repository.edit("m") as model, pytest.raises(ConfigError, match="format 2"):
        model.install(fill_with(ONE))
    assert (folder / "manifest.json").read_text() == '{"format": 2}'


def test_a_failing_fill_leaves_nothing(repository):
    def fill(target):
        (target / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), repository.edit("m") as model:
        model.install(fill)
    assert not repository.root.exists()


def test_leftovers_of_a_killed_change_are_swept_and_other_things_are_not(repository, install):
    version = install("m", ONE)
    folder = repository.root / "m"
    for name in (".install-1", ".removed-1"):
        (folder / name / "sub").mkdir(parents=True)
        (folder / name / "sub/file").write_bytes(b"x")
    (folder / ".link-1").symlink_to("nowhere")
    (folder / ".write-1").write_bytes(b"x")
    (folder / ".gitignore").write_bytes(b"x")
    assert repository.versions("m") == [version]
    with repository.edit("m"):
        pass
    assert sorted(path.name for path in folder.iterdir()) == sorted([".gitignore", version, "current"])


def test_switching_is_verified_and_atomic_for_readers(repository, install):
    one, two = install("m", ONE), install("m", TWO)
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.add((repository.root / "m/current/a.bin").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(50):
            repository.switch("m", one)
            repository.switch("m", two)
    finally:
        stop.set()
        reader.join()
    assert seen <= {b"one", b"two"}
    assert os.readlink(repository.root / "m/current") == two
    (repository.root / "m" / one / "a.bin").write_bytes(b"bad")
    with pytest.raises(IntegrityError):
        repository.switch("m", one)
    assert repository.current("m") == two


def test_unknown_models_and_versions_name_what_there_is(repository, install):
    version = install("m", ONE, switch=False)
    with pytest.raises(NotFound, match=r"no model 'x' in .*there are: m"):
        repository.switch("x", "1")
    with pytest.raises(NotFound, match=f"no version 'x'; it has: {version}"):
        repository.switch("m", "x")
    with pytest.raises(NotFound, match=f"no current version; it has: {version}"):
        repository.resolve("m")
    with pytest.raises(InvalidInput):
        repository.resolve("../m")


def test_a_current_that_leads_out_is_refused(repository, install, tmp_path):
    install("m", ONE, "v1", switch=False)
    current = repository.root / "m/current"
    current.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="expected a version folder beside it"):
        repository.resolve("m")
    current.unlink()
    current.mkdir()
    with pytest.raises(ConfigError, match="expected a link"):
        repository.current("m")


def test_a_version_that_is_a_link_is_no_version(repository, install, tmp_path):
    install("m", ONE, "v1")
    (repository.root / "m/v2").symlink_to(tmp_path)
    assert repository.versions("m") == ["v1"]
    with pytest.raises(NotFound):
        repository.resolve("m:v2")


def test_the_current_version_is_removed_only_by_force(repository, install):
    install("m", ONE, "v1")
    install("m", TWO, "v2")
    repository.remove("m", "v1")
    for version in ("v2", ""):
        with pytest.raises(Conflict, match="'v2' of model 'm' is current"):
            repository.remove("m", version)
    assert repository.versions("m") == ["v2"]
    repository.remove("m", "v2", force=True)
    assert not (repository.root / "m").exists()
    install("m", ONE)
    repository.remove("m", force=True)
    assert repository.names() == []
    assert not hidden(repository)


def test_a_config_of_the_user_is_kept(repository):
    with repository.edit("m") as model:
        assert model.write_config(b"a = 1\n") == "written"
        assert model.write_config(b"a = 1\n") == "unchanged"
        assert model.write_config(b"a = 2\n") == "kept"
        assert model.write_config(b"a = 2\n", force=True) == "written"
    assert (repository.root / "m/headrace.toml").read_bytes() == b"a = 2\n"


def test_a_second_writer_waits_or_is_told_who_writes(repository, install):
    said = []
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with repository.edit("m"):
            entered.set()
            leave.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert entered.wait(30)
        message = f"model 'm' is being changed by process {os.getpid()} on "
        with pytest.raises(Conflict, match=message), repository.edit("m", wait_s=0.0):
            pass
        with repository.edit("other", wait_s=0.0):
            pass

        def say(text):
            said.append(text)
            leave.set()

        with repository.edit("m", say=say):
            assert not holder.is_alive() or leave.is_set()
    finally:
        leave.set()
        holder.join()
    assert len(said) == 1
    assert said[0].startswith(f"model 'm': waiting for process {os.getpid()} on ")
    assert repository.names() == []
    assert not hidden(repository)


def test_only_one_of_many_writers_is_inside(repository):
    inside, most, lock = 0, 0, threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(10):
            with repository.edit("m"):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_repository_that_is_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(ConfigError, match="expected a folder"), ModelStore(tmp_path / "f").edit("m"):
        pass


def test_a_failing_file_system_is_an_error_of_the_tree(repository):
    def fill(target):
        raise OSError(28, "No space left on device", str(target))

    message = r"cannot change model 'm' in .*: No space left on device"
    with pytest.raises(HeadraceError, match=message), repository.edit("m") as model:
        model.install(fill)
    assert not repository.root.exists()


def test_the_default_root_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_REPO", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("HEADRACE_REPO")
    assert str(default_root()) == "models"
