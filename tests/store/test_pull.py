import hashlib
import resource
import subprocess
import sys
import textwrap
import tomllib

import pytest

from headrace.errors import IntegrityError, InvalidInput
from headrace.store.progress import Silent
from headrace.store.pull import pull_model, pull_recipe
from headrace.store.verify import verify


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "Net.onnx"
    path.write_bytes(b"weights" * 1000)
    return path


def pin(path):
    return "#sha256=" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_becomes_a_current_verified_configured_model(repository, model_file):
    pulled = pull_model(repository, str(model_file))
    assert (pulled.name, pulled.status, pulled.is_current, pulled.config) == ("net", "installed", True, "written")
    manifest = verify(repository.resolve("net"))
    assert (manifest.digest, manifest.version) == (pulled.digest, pulled.version)
    assert tomllib.loads((repository.root / "net/headrace.toml").read_text()) == {"backend": "onnx"}


def test_pulling_twice_changes_nothing(repository, model_file):
    first = pull_model(repository, str(model_file))
    before = {path: path.lstat().st_mtime_ns for path in repository.root.rglob("*") if not path.is_dir()}
    again = pull_model(repository, str(model_file))
    assert (again.status, again.version, again.config) == ("unchanged", first.version, "unchanged")
    assert {path: path.lstat().st_mtime_ns for path in repository.root.rglob("*") if not path.is_dir()} == before


def test_a_pin_that_fits_installs_and_then_needs_no_source(repository, model_file):
    uri = str(model_file) + pin(model_file)
    pull_model(repository, uri, file="model.onnx")
    model_file.unlink()
    assert pull_model(repository, uri, file="model.onnx").status == "unchanged"
    assert (repository.resolve("net") / "model.onnx").is_file()


def test_a_pin_that_does_not_fit_installs_nothing(repository, model_file):
    uri = f"{model_file}#sha256={'0' * 64}"
    with pytest.raises(IntegrityError, match=r"expected sha256 0{64}, got [0-9a-f]{64}; nothing was installed"):
        pull_model(repository, uri)
    assert not repository.root.exists()


def test_a_damaged_pinned_version_is_fetched_again(repository, model_file):
    uri = str(model_file) + pin(model_file)
    pull_model(repository, uri)
    (repository.resolve("net") / "Net.onnx").write_bytes(b"bad")
    assert pull_model(repository, uri).status == "repaired"
    verify(repository.resolve("net"))


def test_a_folder_is_pinned_by_its_digest(repository, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in ("a.onnx", "b.onnx"):
        (folder / name).write_bytes(name.encode())
    digest = pull_model(repository, str(folder)).digest
    assert pull_model(repository, f"{folder}#sha256={digest}", name="other").digest == digest
    assert pull_model(repository, str(folder)).config == "absent"


def test_a_new_version_waits_if_it_shall_not_be_current(repository, model_file):
    first = pull_model(repository, str(model_file), switch=False)
    assert first.is_current
    model_file.write_bytes(b"better")
    second = pull_model(repository, str(model_file), switch=False, version="v2")
    assert not second.is_current
    assert repository.current("net") == first.version
    assert pull_model(repository, str(model_file)).version == "v2"
    assert repository.current("net") == "v2"


def test_a_config_that_was_edited_is_kept_unless_forced(repository, model_file):
    pull_model(repository, str(model_file), config=b"# shipped\n")
    config = repository.root / "net/headrace.toml"
    config.write_bytes(b"# edited\n")
    assert pull_model(repository, str(model_file), config=b"# shipped\n").config == "kept"
    assert pull_model(repository, str(model_file), force_config=True).config == "unchanged"
    assert config.read_bytes() == b"# edited\n"
    assert pull_model(repository, str(model_file), config=b"# shipped\n", force_config=True).config == "written"
    assert config.read_bytes() == b"# shipped\n"


@pytest.mark.parametrize(
    "arguments", [{"name": "../x"}, {"version": ".."}, {"version": "current"}, {"file": "../x"}, {"file": "/x"}]
)
def test_names_that_climb_out_are_refused_before_anything_happens(repository, model_file, arguments):
    with pytest.raises(InvalidInput):
        pull_model(repository, str(model_file), **arguments)
    assert not repository.root.exists()


def test_several_files_cannot_be_renamed_to_one(repository, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a").write_bytes(b"")
    (tmp_path / "m/b").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"expected one file to install as 'model\.onnx', got 2"):
        pull_model(repository, str(tmp_path / "m"), file="model.onnx")
    assert not repository.root.exists()


def test_a_recipe_installs_its_models_then_its_pipelines(repository, offline_pip, build_wheel, write_recipe):
    build_wheel(offline_pip, {"demo/a.onnx": b"A", "demo/b.onnx": b"B"})
    sha256 = hashlib.sha256(b"A").hexdigest()
    write_recipe(
        f"""
        description = "Two models and a pipeline."
        [[model]]
        name = "demo-a"
        source = "pypi://demo==1.0/demo/a.onnx#sha256={sha256}"
        file = "model.onnx"
        config = "demo-a.toml"
        [[model]]
        name = "demo-b"
        source = "pypi://demo==1.0/demo/b.onnx"
        config = "demo-b.toml"
        [[pipeline]]
        name = "demo"
        config = "demo.toml"
        """,
        {"demo-a.toml": "a = 1\n", "demo-b.toml": "b = 1\n", "demo.toml": "p = 1\n"},
    )
    pulled = pull_recipe(repository, "demo")
    assert [(p.name, p.kind, p.status) for p in pulled] == [
        ("demo-a", "model", "installed"),
        ("demo-b", "model", "installed"),
        ("demo", "pipeline", "configured"),
    ]
    assert (repository.resolve("demo-a") / "model.onnx").read_bytes() == b"A"
    assert (repository.resolve("demo-b") / "b.onnx").read_bytes() == b"B"
    assert [path.name for path in (repository.root / "demo").iterdir()] == ["headrace.toml"]
    (repository.root / "demo/headrace.toml").write_text("mine = 1\n")
    again = pull_recipe(repository, "demo")
    assert [p.status for p in again] == ["unchanged"] * 3
    assert [p.config for p in again] == ["unchanged", "unchanged", "kept"]


def test_a_full_disk_leaves_the_old_version_current_and_nothing_half_written(repository, model_file, tmp_path):
    """RLIMIT_FSIZE stands for the full disk: writes past it fail with EFBIG half-way through the file."""
    first = pull_model(repository, str(model_file))
    large = tmp_path / "large.onnx"
    large.write_bytes(b"x" * 3_000_000)
    script = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        from headrace.errors import HeadraceError
        from headrace.store.pull import pull_model
        from headrace.store.versions import ModelStore
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
        try:
            pull_model(ModelStore(Path(sys.argv[1])), sys.argv[2], name="net")
        except HeadraceError as error:
            print(error)
        """
    )
    command = [sys.executable, "-c", script, str(repository.root), str(large)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "cannot change model 'net'" in answer.stdout
    assert "File too large" in answer.stdout
    assert repository.versions("net") == [first.version]
    assert not list(repository.root.rglob(".*"))
    verify(repository.resolve("net"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1_500_000


def test_what_a_pull_does_is_told(repository, model_file):
    class Recording(Silent):
        def __init__(self):
            self.steps = []

        def step(self, label, total_bytes=None):
            self.steps.append((label, total_bytes))
            return super().step(label, total_bytes)

    progress = Recording()
    pull_model(repository, str(model_file), progress=progress)
    assert progress.steps == [("copying Net.onnx", 7000)]
