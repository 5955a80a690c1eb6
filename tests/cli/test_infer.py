"""`headrace infer`, on a real server over loopback and in this process: both must give the same answers and errors."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from headrace.serve import client as client_module
from headrace.serve.client import Client


@pytest.fixture(params=["server", "in process"])
def where(request: pytest.FixtureRequest, repository: Path) -> list[str]:
    """Options that choose who answers."""
    if request.param == "server":
        return ["--url", request.getfixturevalue("url")]
    return ["--repo", str(repository)]


def run(*arguments: str, stdin: bytes = b"") -> Any:
    return CliRunner().invoke(app, ["infer", *arguments], input=stdin, env={"COLUMNS": "160", "NO_COLOR": "1"})


def answer(*arguments: str, stdin: bytes = b"") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exception is None, repr(result.exception)
    return str(result.stdout)


def refusal(kind: type[HeadraceError], *arguments: str, stdin: bytes = b"") -> str:
    result = run(*arguments, stdin=stdin)
    assert isinstance(result.exception, kind), repr(result.exception)
    return str(result.exception)


def save(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def test_a_npy_file_goes_to_the_only_input(where: list[str], tmp_path: Path) -> None:
    file = save(tmp_path / "x.npy", np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    out = json.loads(answer("double", file, "--json", *where))["outputs"]
    assert out == [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [2, 4, 6, 8, 10, 12]}]
    assert answer("double", file, *where).startswith("y  FP32[2, 3]\n")


@pytest.mark.parametrize(
    "text",
    [
        "[[1, 2, 3]]",
        '{"x": [[1, 2, 3]]}',
        '{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}',
    ],
)
def test_json_in_each_form(where: list[str], tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    out = json.loads(answer("double", str(tmp_path / "x.json"), "--json", *where))["outputs"]
    assert out[0]["data"] == [2, 4, 6]


def test_named_inputs_and_texts(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": [1, 2], "s": ["x", "y"]}')
    numbers = save(tmp_path / "a.npy", np.array([1, 2]))
    if "--url" in where:
        (tmp_path / "in.json").write_text(
            json.dumps({"inputs": [
                {"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]},
                {"name": "s", "shape": [2], "datatype": "BYTES", "data": ["x", "y"]},
            ]})
        )  # fmt: skip
        out = json.loads(answer("join", str(tmp_path / "in.json"), "--json", *where))["outputs"]
        assert out == [{"name": "t", "datatype": "BYTES", "shape": [2], "data": ["1:x", "2:y"]}]
    assert "'join' has 2 inputs (a INT64[-1], s BYTES[-1])" in refusal(InvalidInput, "join", numbers, *where)
    assert "tensor 's' is missing" in refusal(InvalidInput, "join", "--input", f"a={numbers}", *where)


def test_lines_become_a_table(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello world")
    shown = answer("lines", str(tmp_path / "note.txt"), *where).splitlines()
    assert [line.split() for line in shown] == [["score", "text"], ["0.250", "hello"], ["0.500", "world"]]
    raw = json.loads(answer("lines", str(tmp_path / "note.txt"), "--json", *where))
    assert raw["lines"][0]["box"] == [[0, 0], [1, 1]]


def test_standard_input_is_recognised_by_its_bytes(where: list[str]) -> None:
    got = json.loads(answer("facts", "-", "--json", *where, stdin=b"\x89PNG\r\n\x1a\n...."))
    assert got == {"size": 12, "type": "image/png"}
    got = json.loads(answer("facts", "-", "--json", *where, stdin=b"RIFF\0\0\0\0WAVEfmt "))
    assert got["type"] == "audio/wav"
    got = json.loads(answer("facts", "-", "--type", "audio/flac", "--json", *where, stdin=b"fLaC"))
    assert got["type"] == "audio/flac"


def test_json_for_a_pipeline_goes_to_the_pipeline(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    got = json.loads(answer("facts", str(tmp_path / "x.json"), *where))
    assert got == {"size": 2, "type": "application/json"}


def test_a_name_that_is_not_there_lists_what_is(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    for arguments in ([str(tmp_path / "note.txt")], ["--input", f"x={save(tmp_path / 'x.npy', np.zeros(3))}"]):
        text = refusal(NotFound, "nobody", *arguments, *where)
        assert "no model or pipeline 'nobody'" in text
        assert "double, facts, join, lines" in text
        assert text.count("double") == 1


def test_a_file_for_a_model_says_what_the_model_takes(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    text = refusal(InvalidInput, "double", str(tmp_path / "note.txt"), *where)
    assert "'double' is a model, not a pipeline" in text
    assert "x FP32[-1, 3]" in text


def test_tensors_for_a_pipeline_say_that_it_is_one(where: list[str], tmp_path: Path) -> None:
    file = save(tmp_path / "x.npy", np.zeros(3))
    assert "'lines' is a pipeline" in refusal(InvalidInput, "lines", "--input", f"x={file}", *where)


def test_the_servers_own_refusal_comes_through(where: list[str], tmp_path: Path) -> None:
    wrong = save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    assert "axis 1 must be 3, is 4" in refusal(InvalidInput, "double", wrong, *where)
    (tmp_path / "x.json").write_text('{"z": [1]}')
    assert "has no input 'z'" in refusal(InvalidInput, "double", str(tmp_path / "x.json"), *where)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either FILE"),
        (["file", "--input", "x=x.npy"], "give either FILE"),
        (["/no/such/file"], "/no/such/file: cannot be read: No such file"),
        (["--input", "x.npy"], "expected NAME=FILE.npy"),
        (["-", "--url", "http://127.0.0.1:1", "--repo", "models"], "give either --url"),
        (["-", "--url", "127.0.0.1:8000"], "expected http://HOST:PORT"),
        (["-", "--url", "http://127.0.0.1:99999"], "Port out of range"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    assert message in refusal(InvalidInput, "double", *arguments)


def test_a_file_that_is_no_npy(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY but not really")
    where = ("--repo", str(repository))
    assert "not a .npy file" in refusal(InvalidInput, "double", str(tmp_path / "x.npy"), *where)
    pickled = save(tmp_path / "p.npy", np.array([{}], object))
    assert "not a .npy file of plain numbers" in refusal(InvalidInput, "double", "--input", f"x={pickled}", *where)


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(NotFound, "double", "-", "--repo", str(tmp_path / "nowhere"))


@pytest.fixture
def silent_url() -> str:
    """A loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_without_a_server_the_remedy_is_named(silent_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(Unavailable, "ocr", "-", "--url", silent_url, stdin=b"x")
    assert "no server listens" in text
    assert f"headrace serve --port {silent_url.rpartition(':')[2]}" in text
    assert "--repo" not in text
    monkeypatch.setattr(client_module, "DEFAULT_URL", silent_url)
    assert "or run without a server: headrace infer … --repo DIR" in refusal(Unavailable, "ocr", "-", stdin=b"x")


def test_the_client_by_itself(url: str) -> None:
    with Client(url + "/") as client:
        assert client.ready()
        assert client.names() == ["double", "facts", "join", "lines"]
        assert client.metadata("double")["platform"] == "python"
        strided = np.arange(12, dtype=np.float32).reshape(4, 3)[::2]
        np.testing.assert_array_equal(client.infer("double", {"x": strided})["y"], strided * 2)
        swapped = strided.astype(">f4")
        np.testing.assert_array_equal(client.infer("double", {"x": swapped})["y"], strided * 2)
        texts = client.infer("join", {"a": np.array([7]), "s": np.array(["ü"], object)})
        assert texts["t"].tolist() == ["7:ü".encode()]
        with pytest.raises(InvalidInput, match="complex64"):
            client.infer("double", {"x": np.zeros(1, np.complex64)})
        with pytest.raises(NotFound, match="no version '9'"):
            client.infer("double", {"x": strided}, version="9")


def test_a_client_outlives_a_closed_connection(url: str) -> None:
    with Client(url) as client:
        assert client.names()
        assert client._connection.sock is not None
        client._connection.sock.shutdown(socket.SHUT_RDWR)
        assert client.names()


def test_a_client_without_a_server_is_not_ready(silent_url: str) -> None:
    assert not Client(silent_url).ready()


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (429, b'{"error": "full", "type": "Overloaded"}', Overloaded, "full"),
        (400, b'{"error": "odd", "type": "Unheard"}', InvalidInput, "odd"),
        (500, b'{"error": "broken", "type": "StageFailed"}', HeadraceError, "broken"),
        (502, b"<html>", HeadraceError, "answered with status 502: <html>"),
        (404, b"[]", NotFound, "answered with status 404"),
    ],
)
def test_errors_keep_their_class(status: int, body: bytes, kind: type[HeadraceError], text: str) -> None:
    error = client_module._error(status, body, "GET /")
    assert type(error) is kind
    assert text in str(error)


def test_an_answer_that_is_no_inference_response() -> None:
    for length, body in (("", b"[]"), ("", b"hello"), ("99", b"{}"), ("", b'{"outputs": [{"name": "y"}]}')):
        with pytest.raises(Unavailable, match="not an Open Inference Protocol response"):
            client_module._outputs(length, body)
