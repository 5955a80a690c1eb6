"""Standard input that is closed and standard output that is full: one line says so, whatever the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.language import save_language_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model(tmp_path_factory.mktemp("language") / "tiny.gguf")


def _fails(redirect: str, args: list[str], **env: str) -> str:
    """What the command says on standard error before it exits with status 1."""
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "headrace", *args]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "args",
    [
        ["inspect", "MODEL"],
        ["tokenize", "MODEL", "Hello"],
        ["generate", "MODEL", "Hello", "--max-tokens", "4", "--threads", "1"],
        ["cache"],
        ["--help"],
    ],
    ids=lambda args: args[0],
)
def test_output_that_cannot_be_written_is_told_in_one_line(model: Path, args: list[str], unbuffered: str) -> None:
    args = [str(model) if arg == "MODEL" else arg for arg in args]
    said = _fails(">/dev/full", args, PYTHONUNBUFFERED=unbuffered)
    assert said == "headrace: standard output: No space left on device\n"


@pytest.mark.parametrize("args", [["chat", "MODEL"], ["generate", "MODEL"], ["tokenize", "MODEL"], ["infer", "x", "-"]])
def test_input_that_is_closed_is_told_in_one_line(model: Path, args: list[str]) -> None:
    args = [str(model) if arg == "MODEL" else arg for arg in args]
    said = _fails("<&-", args)
    assert said.startswith("headrace: standard input: expected ")
    assert said.endswith(", but it is closed\n")
    assert said.count("\n") == 1
