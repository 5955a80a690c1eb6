"""A model is named by its file, its folder, or its name in the repository; what cannot be meant is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli._model import model_file
from headrace.errors import InvalidInput, NotFound
from headrace.store.pull import pull_model
from headrace.store.versions import ModelStore


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def repo(tmp_path: Path, gguf: Path) -> Path:
    pull_model(ModelStore(tmp_path / "repo"), str(gguf), name="tiny", version="v1")
    return tmp_path / "repo"


def test_a_file_is_itself(gguf: Path) -> None:
    assert model_file(str(gguf)) == gguf


def test_a_folder_holds_one_model(tmp_path: Path, gguf: Path) -> None:
    assert model_file(tmp_path) == gguf


def test_the_first_part_stands_for_a_split_file(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        (tmp_path / f"m-0000{part}-of-00003.gguf").write_bytes(b"GGUF")
    assert model_file(tmp_path).name == "m-00001-of-00003.gguf"


def test_a_folder_of_safetensors_is_itself(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    assert model_file(folder) == folder


@pytest.mark.parametrize("reference", ["tiny", "tiny:v1", "tiny@v1"])
def test_a_name_is_looked_up_in_the_repository(repo: Path, reference: str) -> None:
    assert model_file(reference, repo) == (repo / "tiny" / "v1" / "tiny.gguf").resolve()


def test_the_repository_is_where_the_environment_says(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REPO", str(repo))
    assert model_file("tiny").name == "tiny.gguf"


def test_the_file_that_headrace_toml_names_is_meant(repo: Path) -> None:
    version = repo / "tiny" / "v1"
    (version / "other.gguf").write_bytes(b"GGUF")
    (repo / "tiny" / "headrace.toml").write_text('backend = "llm"\nfile = "other.gguf"\n')
    assert model_file("tiny", repo).name == "other.gguf"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("absent.gguf", "no such file"),
        ("some/where", "no such file"),
        ("big", "no model 'big'.*there are: tiny.*--repo or HEADRACE_REPO"),
        ("tony", "did you mean 'tiny'"),
        ("smollm", "get it with: headrace pull smollm2"),
        ("tiny:v2", "v2.*v1$"),
    ],
)
def test_what_is_not_there_is_told(repo: Path, model: str, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        model_file(model, repo)


def test_several_models_in_a_folder_are_told(tmp_path: Path, gguf: Path) -> None:
    (tmp_path / "second.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidInput, match=r"expected one GGUF file.*second\.gguf, tiny\.gguf"):
        model_file(tmp_path)


def test_what_is_neither_file_nor_folder_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", Path("/dev/null")):
        with pytest.raises(InvalidInput, match=f"{path}: expected a file or a folder; it is neither"):
            model_file(path)


@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 3000, "a" * 5000 + ".gguf"], ids=range(3))
def test_a_name_that_no_file_can_have_is_told(repo: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: File name too long"):
        model_file(name, repo)


def test_a_pipeline_is_no_language_model(repo: Path) -> None:
    (repo / "ocr").mkdir()
    (repo / "ocr" / "headrace.toml").write_text('[[stage]]\nop = "image.decode"\n')
    with pytest.raises(InvalidInput, match=r"'ocr' is a pipeline, not a language model.*headrace infer ocr FILE"):
        model_file("ocr", repo)
