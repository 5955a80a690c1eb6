"""`make demo` as a newcomer meets it: real models and real answers, and a reason when something is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.apps import demo
from headrace.errors import Unavailable
from headrace.store.pull import pull_recipe
from headrace.store.versions import ModelStore
from headrace.testing.images import edit_distance


@contextmanager
def _demo(home: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    run = subprocess.Popen(
        [sys.executable, "-m", "headrace.apps.demo"],
        env={**os.environ, "DEMO_HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield run
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(40)
            run.kill()
        run.communicate()


def _refuses_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture(scope="module")
def home(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the demo with its models in it; only a missing network is a reason to skip."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(checkout / ".cache" / "headrace"))
        try:
            for recipe in demo.RECIPES:
                pull_recipe(ModelStore(folder / "models"), recipe)
        except Unavailable as error:
            pytest.skip(f"the models cannot be pulled: {error}")
        yield folder


@pytest.mark.models
def test_it_answers_and_ends(home: Path) -> None:
    with _demo(home, DEMO_ONCE="1") as run:
        output, errors = run.communicate(timeout=110)
    assert run.returncode == 0, output + errors
    written = re.findall(r"^  written    (.*)$", output, flags=re.MULTILINE)
    recognised = re.findall(r"^  recognised (.*)  \(confidence", output, flags=re.MULTILINE)
    assert len(written) == len(recognised) == 3, output
    for line, read in zip(written, recognised, strict=True):
        assert edit_distance(line.replace(" ", ""), read.replace(" ", "")) <= 2, output
    spoken = re.findall(r"^  spoken from ([\d.]+) s to ([\d.]+) s$", output, flags=re.MULTILINE)
    found = re.findall(r"^  found from  ([\d.]+) s to ([\d.]+) s$", output, flags=re.MULTILINE)
    assert len(spoken) == len(found) == 2, output
    for said, heard in zip(spoken, found, strict=True):
        assert [float(s) for s in heard] == pytest.approx([float(s) for s in said], abs=0.3)
    answered = re.search(
        r"^  answered   (.*?)\n  (\d+) tokens, (\d+) tokens/s, ", output, flags=re.MULTILINE | re.DOTALL
    )
    assert answered, output
    assert "light" in answered[1]
    assert int(answered[2]) > 20
    assert _refuses_connections(int(re.findall(r"http://127\.0\.0\.1:(\d+)", output)[0])), "the server is still there"
    told, serve, chat = output.splitlines()[-3:]
    assert "the server has been stopped" in told
    command = serve.partition("to serve again: ")[2]
    assert command.endswith(f" serve {home}/models")
    subprocess.run(["bash", "-c", command.replace(" serve ", " models --repo ")], timeout=60, check=True)
    command = chat.partition("to chat: ")[2]
    subprocess.run(["bash", "-c", command], timeout=60, check=True, stdin=subprocess.DEVNULL)


@pytest.mark.models
def test_it_serves_beside_a_taken_port_until_interrupted(home: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else's is as good
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        with _demo(home) as run:
            lines = []
            assert run.stdout is not None
            for line in run.stdout:
                lines.append(line)
                if "/v1/chat/completions" in line:
                    break
            hint, second, third = (line.partition("try: ")[2] for line in lines if "try: " in line)
            port = int(re.findall(r":(\d+)/", hint)[0])
            assert port != 8000
            answer = subprocess.run(["bash", "-c", hint], capture_output=True, text=True, timeout=60, check=True)
            assert '"lines"' in answer.stdout, answer.stdout + answer.stderr
            asked = subprocess.run(["bash", "-c", second], capture_output=True, text=True, timeout=60, check=True)
            assert "Invoice" in asked.stdout, asked.stdout + asked.stderr
            chat = subprocess.run(["bash", "-c", third], capture_output=True, text=True, timeout=60, check=True)
            assert "light" in json.loads(chat.stdout)["choices"][0]["message"]["content"], chat.stdout + chat.stderr
            run.send_signal(signal.SIGINT)
            output, errors = run.communicate(timeout=60)
    assert run.returncode == 0, output + errors
    assert "stopped" in output
    assert "Traceback" not in errors
    assert _refuses_connections(port)


def test_a_failed_pull_is_told(tmp_path: Path) -> None:
    tmp_path.joinpath("models").write_text("a file where the repository should be")
    with _demo(tmp_path, DEMO_ONCE="1") as run:
        output, errors = run.communicate(timeout=60)
    assert run.returncode == 1, output
    assert "demo: failed: `headrace pull ocr" in errors
    assert "Traceback" not in errors


def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(
        demo.DemoFailed, match=r"ended with status [1-9](?s:.*)end of .*server\.log(?s:.*)no such file or folder"
    ):
        demo.Server(tmp_path / "no-such-repository", tmp_path / "server.log").__enter__()


def test_an_error_answer_is_told_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with (
        demo.Server(tmp_path / "models", tmp_path / "server.log") as server,
        pytest.raises(demo.DemoFailed, match=r"pipeline 'ocr': no model or pipeline 'ocr'(?s:.*)end of .*server\.log"),
    ):
        server.ask("ocr", b"picture", "image/png")
    assert "drained" in (tmp_path / "server.log").read_text()
