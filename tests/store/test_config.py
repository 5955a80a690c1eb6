from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.store.config import check_file, language_model, named_file
from headrace.store.pull import pull_model

NAMED = b'backend = "onnx"\nfile = "model.onnx"\n'


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (NAMED, "model.onnx"),
        (b'backend = "onnx"\nfile = "./a/b.onnx"\n', "a/b.onnx"),
        (b'backend = "onnx"\n', ""),
        (b'backend = "python"\nfile = "model.onnx"\n', ""),
        (b'backend = "llm"\nfile = "m.gguf"\n', "m.gguf"),
        (b'backend = "onnx"\nfile = 3\n', ""),
        (b"no toml", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_the_file_that_is_named(text, file):
    assert named_file(text) == file


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (NAMED, ["model.onnx", "weights.bin"]),
        (b'backend = "onnx"\n', ["any.onnx", "deeper/other.onnx"]),
        (b'backend = "python"\nentry = "m:f"\n', ["m.py"]),
        (b'backend = "llm"\n', ["m.gguf"]),
        (b'backend = "llm"\n', ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"]),
        (b'backend = "llm"\n', ["config.json", "model.safetensors"]),
        (b"no toml", []),
    ],
)
def test_what_fits_passes(text, paths):
    check_file(text, paths, Path("headrace.toml"))


@pytest.mark.parametrize(
    ("text", "paths", "message"),
    [
        (NAMED, ["net.onnx"], r'm/headrace\.toml: `file = "model\.onnx"` names .* lacks; it has: net\.onnx'),
        (b'backend = "onnx"\n', ["b.onnx", "a.onnx"], r"`file =` must name .*: a\.onnx, b\.onnx"),
        (b'backend = "onnx"\n', ["deeper/a.onnx"], r"`file =` must name"),
        (b'backend = "llm"\n', ["a.gguf", "b.gguf"], r"expected one \*\.gguf, the version has: a\.gguf, b\.gguf"),
        (b'backend = "llm"\n', ["config.json"], r"`file =` must name"),
    ],
)
def test_what_does_not_fit_is_told(text, paths, message):
    with pytest.raises(ConfigError, match=message):
        check_file(text, paths, Path("m/headrace.toml"))


@pytest.mark.parametrize(
    ("paths", "model"),
    [
        (["m.gguf", "README.md"], "m.gguf"),
        (["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"], "m-00001-of-00003.gguf"),
        (["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "."),
        (["m.gguf", "config.json", "model.safetensors"], "m.gguf"),
        (["a.gguf", "b.gguf"], ""),
        (["deeper/a.gguf"], ""),
        (["model.safetensors"], ""),
        ([], ""),
    ],
)
def test_which_file_is_a_language_model(paths, model):
    assert language_model(paths) == model


@pytest.fixture
def named(repository, tmp_path):
    """Model `m`, whose `headrace.toml` names `model.onnx`, and a folder for further files."""
    (tmp_path / "model.onnx").write_bytes(b"first")
    pull_model(repository, str(tmp_path / "model.onnx"), name="m", version="v1", config=NAMED)
    return tmp_path


def test_a_file_of_another_name_is_installed_under_the_one_that_is_named(repository, named):
    (named / "model2.onnx").write_bytes(b"second")
    pulled = pull_model(repository, str(named / "model2.onnx"), name="m", version="v2")
    assert (pulled.is_current, pulled.config) == (True, "unchanged")
    assert (repository.resolve("m") / "model.onnx").read_bytes() == b"second"
    assert pull_model(repository, str(named / "model2.onnx"), name="m").status == "unchanged"
    repository.check("m")


def test_a_version_that_lacks_the_named_file_is_not_made_current(repository, named):
    (named / "model.gguf").write_bytes(b"other")
    with pytest.raises(ConfigError, match=r"m/headrace\.toml: `file = .*model\.gguf; mend that line, or .*--no-switch"):
        pull_model(repository, str(named / "model.gguf"), name="m")
    assert repository.versions("m") == ["v1"]
    assert pull_model(repository, str(named / "model.gguf"), name="m", version="v2", switch=False).version == "v2"
    with pytest.raises(ConfigError, match=r"`file = "):
        repository.switch("m", "v2")
    with pytest.raises(ConfigError, match=r"`file = "):
        pull_model(repository, str(named / "model.gguf"), name="m", version="v2")
    assert repository.current("m") == "v1"


def test_the_check_sees_a_file_that_is_named_and_not_there(repository, named):
    repository.check("m")
    (repository.root / "m/headrace.toml").write_bytes(b'backend = "onnx"\nfile = "gone.onnx"\n')
    for read_files in (True, False):
        with pytest.raises(ConfigError, match=r"gone\.onnx"):
            repository.check("m", read_files=read_files)


def test_a_recipe_that_replaces_the_configuration_is_checked_against_its_own(repository, named):
    (named / "net.onnx").write_bytes(b"third")
    config = b'backend = "onnx"\nfile = "net.onnx"\n'
    pulled = pull_model(repository, str(named / "net.onnx"), name="m", config=config, force_config=True)
    assert (pulled.is_current, pulled.config) == (True, "written")
    assert (repository.resolve("m") / "net.onnx").is_file()


def test_a_name_that_climbs_out_is_not_installed_under(repository, named):
    (repository.root / "m/headrace.toml").write_bytes(b'backend = "onnx"\nfile = "../model.onnx"\n')
    (named / "new.onnx").write_bytes(b"new")
    with pytest.raises(ConfigError, match=r"\.\./model\.onnx"):
        pull_model(repository, str(named / "new.onnx"), name="m")
    assert repository.versions("m") == ["v1"]


def test_the_guess_fits_the_next_version_whatever_its_name(repository, tmp_path):
    for name, version in (("model.onnx", "v1"), ("model2.onnx", "v2")):
        (tmp_path / name).write_bytes(name.encode())
        pull_model(repository, str(tmp_path / name), name="m", version=version)
        repository.check("m")
    assert (repository.resolve("m") / "model2.onnx").is_file()


def test_the_guess_names_a_file_that_the_server_would_not_find(repository, tmp_path):
    (tmp_path / "Net.ONNX").write_bytes(b"net")
    pull_model(repository, str(tmp_path / "Net.ONNX"))
    assert (repository.root / "net/headrace.toml").read_text() == 'backend = "onnx"\nfile = "Net.ONNX"\n'
    repository.check("net")
