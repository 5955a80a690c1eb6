import json
import os
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import Conflict, IntegrityError, InvalidInput, NotFound
from headrace.store.pull import pull_model
from headrace.store.versions import ModelStore


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Model `net` with versions v1 and v2 (current), and pipeline `p`, where the command looks for them."""
    repository = ModelStore(tmp_path / "models")
    path = tmp_path / "net.onnx"
    for version in ("v1", "v2"):
        path.write_bytes(version.encode() * 1000)
        pull_model(repository, str(path), version=version)
    (repository.root / "p").mkdir()
    (repository.root / "p/headrace.toml").write_text("[[stage]]\n")
    monkeypatch.setenv("HEADRACE_REPO", str(repository.root))
    monkeypatch.setenv("COLUMNS", "200")
    return repository


def run(*arguments):
    result = CliRunner().invoke(app, ["models", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_list_shows_name_version_size_and_source(repository, tmp_path):
    result = run()
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert ["net", "v2", "2", "kB", (tmp_path / "net.onnx").as_uri()] in lines
    assert ["p", "(pipeline)"] in lines
    assert run("list").stdout == result.stdout
    assert ["net", "v2", "2", "kB", "yes"] in [line.split()[:5] for line in run("list", "--verify").stdout.splitlines()]


def test_on_a_terminal_a_long_source_is_cut_and_never_wrapped(repository, monkeypatch):
    whole = run().stdout.splitlines()
    assert max(map(len, whole)) > 40
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    monkeypatch.setattr("headrace.cli.models.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    cut = run().stdout.splitlines()
    assert max(map(len, cut)) == 40
    assert len(cut) == len(whole)
    assert next(line for line in cut if line.startswith("net")).endswith("…")


def test_json_lists_the_same_facts(repository):
    document = json.loads(run("--json").stdout)
    net, p = document["models"]
    assert (net["name"], net["current"], net["versions"], net["size_bytes"]) == ("net", "v2", ["v1", "v2"], 2000)
    assert (net["verified"], net["error"]) == (None, "")
    assert (p["name"], p["kind"]) == ("p", "pipeline")


def test_verify_finds_damage_and_exits_1(repository):
    assert run("--verify").exit_code == 0
    (repository.resolve("net") / "net.onnx").write_bytes(b"x" * 2000)
    result = run("--verify")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert result.stderr.startswith("headrace: net: ")
    assert "net.onnx: expected sha256" in result.stderr
    net, _ = json.loads(run("--verify", "--json").stdout)["models"]
    assert net["verified"] is False
    assert "expected sha256" in net["error"]


def test_verify_sees_a_file_that_headrace_toml_names_and_is_not_there(repository):
    (repository.root / "net/headrace.toml").write_text('backend = "onnx"\nfile = "model.onnx"\n')
    result = run("--verify")
    assert result.exit_code == 1
    assert 'headrace.toml: `file = "model.onnx"`' in result.stderr


def test_a_version_may_be_removed_by_either_form(repository):
    assert run("remove", "net:v1").stdout == "net:v1: removed\n"
    with pytest.raises(NotFound, match="it has: v2"):
        run("remove", "net", "v1")


def test_a_broken_model_does_not_hide_the_others(repository):
    (repository.root / "p/current").mkdir()
    result = run()
    assert result.exit_code == 1
    assert "net" in result.stdout
    assert "p: " in result.stderr


def test_switch(repository):
    result = run("switch", "net", "v1")
    assert result.stdout == "net: v1 is current\n"
    assert "curl -sS -X POST http://127.0.0.1:8000/v2/repository/models/net/load" in result.stderr
    assert repository.current("net") == "v1"
    assert run("switch", "net:v2").exit_code == 0
    assert run("switch", "net:v1").exit_code == 0
    with pytest.raises(InvalidInput, match="headrace models switch net VERSION; it has: v1, v2"):
        run("switch", "net")
    with pytest.raises(InvalidInput, match="'v2' is one too many"):
        run("switch", "net:v1", "v2")
    with pytest.raises(NotFound, match="it has: v1, v2"):
        run("switch", "net", "v3")
    (repository.root / "net/v2/net.onnx").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"net\.onnx"):
        run("switch", "net", "v2")
    assert repository.current("net") == "v1"


def test_remove(repository):
    with pytest.raises(
        Conflict, match=r"'v2' of model 'net' is current; first run: headrace models switch net v1; .*--force"
    ):
        run("remove", "net:v2")
    with pytest.raises(Conflict, match="--force removes it all the same"):
        run("remove", "net")
    assert run("remove", "net", "v1").stdout == "net:v1: removed\n"
    assert repository.versions("net") == ["v2"]
    assert run("remove", "net", "--force").exit_code == 0
    assert run("remove", "p").exit_code == 0
    assert repository.names() == []


def test_the_repository_may_be_named_before_or_after_the_sub_command(repository, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_REPO")
    assert run("--repo", repository.root, "switch", "net", "v1").exit_code == 0
    assert run("switch", "net", "v2", "--repo", repository.root).exit_code == 0


def test_an_empty_repository_says_how_to_begin(tmp_path):
    result = run("--repo", tmp_path)
    assert result.exit_code == 0
    assert f"headrace pull NAME --repo {tmp_path} (NAME: gemma3-270m, ocr, " in result.stdout
    assert json.loads(run("--repo", tmp_path, "--json").stdout)["models"] == []


@pytest.mark.parametrize("command", [[], ["list"], ["switch"], ["remove"]])
def test_help_shows_examples(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "headrace models" in result.stdout
