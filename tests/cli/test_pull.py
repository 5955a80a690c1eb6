import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.store.versions import ModelStore

LIMIT_S = 60


@pytest.fixture
def pull(tmp_path):
    """Start `headrace pull …` in an empty folder, with its own repository and cache; killed at the end if need be."""
    started = []

    def run(*arguments, **environment):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "HEADRACE_"))}
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", "pull", *map(str, arguments)],
            cwd=tmp_path,
            env={**inherited, "HEADRACE_CACHE": str(tmp_path / "cache"), "PIP_CONFIG_FILE": os.devnull, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield run
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=LIMIT_S)


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"weights" * 1000)
    return path


def outcome(child):
    output, errors = child.communicate(timeout=LIMIT_S)
    return child.returncode, output, errors


def test_a_pull_says_what_it_did_and_the_second_that_there_is_nothing_to_do(pull, model_file, tmp_path):
    code, output, errors = outcome(pull("./net.onnx"))
    version = ModelStore(tmp_path / "models").current("net")
    assert (code, errors) == (0, "copying net.onnx (7 kB)\n")
    assert output == f"net: installed {version} (7 kB); current; headrace.toml written\n"
    code, output, _ = outcome(pull("./net.onnx"))
    assert (code, output) == (0, f"net: {version} is already there, nothing to do; current\n")


def test_a_version_that_is_not_current_comes_with_the_command_that_makes_it_so(pull, model_file, tmp_path):
    outcome(pull("./net.onnx", "--version", "v1", "--repo", "my models"))
    model_file.write_bytes(b"better")
    code, output, _ = outcome(pull("./net.onnx", "--version", "v2", "--no-switch", "--repo", "my models"))
    assert code == 0
    assert output.endswith("not current; to make it so: headrace models switch net v2 --repo 'my models'\n")


def test_json_is_one_object_and_quiet_is_quiet(pull, model_file, tmp_path):
    code, output, errors = outcome(pull(model_file, "--json", "--quiet", "--as", "other", "--version", "v1"))
    assert (code, errors) == (0, "")
    document = json.loads(output)
    assert output.count("\n") == 1
    assert document["repo"] == "models"
    (model,) = document["models"]
    assert (model["name"], model["version"], model["status"], model["is_current"]) == ("other", "v1", "installed", True)
    assert outcome(pull(model_file, "--quiet")) == (0, "", "")


def test_the_repository_comes_from_the_option_or_the_environment(pull, model_file, tmp_path):
    assert outcome(pull(model_file, "--repo", tmp_path / "a", HEADRACE_REPO=str(tmp_path / "b")))[0] == 0
    assert outcome(pull(model_file, HEADRACE_REPO=str(tmp_path / "b")))[0] == 0
    assert ModelStore(tmp_path / "a").names() == ModelStore(tmp_path / "b").names() == ["net"]
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ocrr"], "no recipe 'ocrr', and no such file; did you mean ocr? recipes: gemma3-270m, ocr, smollm2, vad"),
        (["nothing"], "no recipe 'nothing', and no such file; recipes: gemma3-270m, ocr, smollm2, vad"),
        (["./nothing.onnx"], "no such file or folder"),
        (["vad", "--as", "x"], "--as and --version go with a source; 'vad' is a recipe"),
        (["ftp://host/x"], "unknown scheme 'ftp'"),
        (["pypi://x"], "expected pypi://PACKAGE"),
        (["net.onnx", "--as", "../x"], "model name '../x'"),
        (["net.onnx#sha256=" + "0" * 64], "nothing was installed"),
    ],
)
def test_an_error_is_one_clear_line_and_leaves_nothing(pull, model_file, tmp_path, arguments, message):
    code, output, errors = outcome(pull(*arguments, "--quiet"))
    assert (code, output) == (1, "")
    assert errors.startswith("headrace: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "models").exists()


def test_help_shows_examples(pull):
    code, output, _ = outcome(pull("--help", COLUMNS="120"))
    assert code == 0
    assert "headrace pull ocr" in output
    assert "HEADRACE_REPO" in output


def test_two_pulls_at_once_both_succeed_and_install_once(pull, model_file, tmp_path):
    repository = ModelStore(tmp_path / "models")
    with repository.edit("net"):
        children = [pull("./net.onnx", "--json") for _ in range(2)]
        told = [child.stderr.readline() for child in children]
    assert all(f"model 'net': waiting for process {os.getpid()} on " in line for line in told)
    outcomes = [outcome(child) for child in children]
    assert [code for code, _, _ in outcomes] == [0, 0]
    statuses = [json.loads(output)["models"][0]["status"] for _, output, _ in outcomes]
    assert sorted(statuses) == ["installed", "unchanged"]
    assert len(repository.versions("net")) == 1
    assert not list((tmp_path / "models").rglob(".*"))


def test_ctrl_c_while_waiting_exits_130(pull, model_file, tmp_path):
    with ModelStore(tmp_path / "models").edit("net"):
        child = pull("./net.onnx")
        assert "waiting for process" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        assert outcome(child)[0] == 130
    assert ModelStore(tmp_path / "models").names() == []


def test_ctrl_c_while_pip_downloads_exits_130_stops_pip_and_leaves_nothing(pull, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(LIMIT_S)
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        (tmp_path / "tmp").mkdir()
        child = pull("pypi://demo/x.onnx", PIP_INDEX_URL=url, TMPDIR=str(tmp_path / "tmp"))
        connection, _ = index.accept()  # pip asks, and is never answered
        with connection:
            pids = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
            assert len(pids) == 1
            child.send_signal(signal.SIGINT)
            assert outcome(child)[0] == 130
        give_up_s = time.monotonic() + LIMIT_S
        while Path(f"/proc/{pids[0]}").exists() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        assert not Path(f"/proc/{pids[0]}").exists()
    assert not (tmp_path / "models").exists()
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["wheels"]
    assert list((tmp_path / "tmp").iterdir()) == []
