"""What `headrace serve` says when it starts and ends: to people, to a log collector, and when it cannot."""

import json
import subprocess
import sys

import pytest


@pytest.fixture
def refused():
    """Run a server that cannot start; gives what it said on standard error."""

    def run(*arguments):
        command = [sys.executable, "-m", "headrace", "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr
        return done.stderr

    return run


def test_every_line_of_a_json_log_is_an_object(start):
    server = start("--log-format", "json")
    assert server.request("POST", "/v2/repository/models/mlp/unload", {})[0] == 200
    assert server.request("POST", "/v2/repository/models/corrupt/load", {})[0] == 500
    assert server.stop() == 0
    entries = [json.loads(line) for line in server.log.read_text().splitlines()]
    said = [entry["message"] for entry in entries]
    (banner,) = [entry for entry in entries if entry["message"].startswith("serving 6 of 8 on http://")]
    assert banner["url"] == f"http://127.0.0.1:{server.port}"
    assert {"model": "typo", "state": "UNAVAILABLE"}.items() <= entries[said.index(banner["message"]) + 7].items()
    assert "mlp: unloaded version 1" in said
    assert len([line for line in said if line.startswith("corrupt: load failed: model 'corrupt'")]) == 2
    assert said[-1] == "drained, bye"


def test_a_text_log_is_for_people(start):
    server = start("--log-format", "text")
    assert server.stop() == 0
    lines = server.log.read_text().splitlines()
    url = f"http://127.0.0.1:{server.port}"
    assert f"headrace: serving 6 of 8 on {url}  (docs: {url}/docs)" in lines
    assert "  mlp                      ready  not verified: it has no manifest" in lines
    assert lines[-1] == "headrace: drained, bye"


def test_an_empty_repository_says_where_models_come_from(start):
    server = start(
        "--log-format", "text", without=("mlp", "identity", "slow", "broken", "corrupt", "typo", "shout", "writer")
    )
    assert server.stop() == 0
    assert f"get one with: headrace pull NAME --repo {server.repo} (NAME: gemma3-270m, ocr, " in server.log.read_text()


def test_the_folder_of_one_model_is_refused_with_the_folder_to_give(refused, repository):
    said = refused(repository / "mlp", "--port", "0", "--log-format", "text")
    assert "is one model or pipeline, not a repository of them" in said
    assert said.endswith(f": {repository}\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_taken_port_is_one_clear_line(refused, server, repository, log_format):
    where = f"127.0.0.1:{server.port}"
    said = f"cannot listen on {where}: address already in use; choose another with --port"
    (line,) = refused(repository, "--port", server.port, "--log-format", log_format).splitlines()
    assert said == (json.loads(line)["message"] if log_format == "json" else line.removeprefix("headrace: "))


def test_a_host_that_is_not_here_is_told_without_numbers(refused, repository):
    said = refused(repository, "--host", "192.0.2.1", "--port", "0", "--log-format", "text")
    assert said == "headrace: cannot listen on 192.0.2.1:0: cannot assign requested address\n"


@pytest.mark.parametrize(
    ("options", "control"), [((), "is off unless --token is given"), (("--token", "s3cret"), "needs the token")]
)
def test_an_open_address_is_warned_of_once(start, server, options, control):
    exposed = start("--host", "0.0.0.0", *options)
    said = f"0.0.0.0: not a loopback address: inference is open to whoever reaches it; model control {control}"
    entries = [json.loads(line) for line in exposed.log.read_text().splitlines()]
    assert [entry["level"] for entry in entries if entry["message"] == said] == ["warning"]
    assert "loopback" not in server.log.read_text()
