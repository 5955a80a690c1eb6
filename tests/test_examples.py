"""What README.md and examples/ tell a newcomer to type works as it stands, with only the port changed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.testing.models import save_linear

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("curl")), reason="the examples are typed into bash and use curl"
)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _block(page: Path, language: str, holding: str) -> str:
    """The one block of the page in this language with this text in it."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if holding in block]
    assert len(found) == 1, f"{page.name}: {len(found)} blocks hold {holding!r}"
    return found[0]


def _type(script: str, folder: Path) -> str:
    """Type the script into bash as a user with the environment's `bin` on the path, end the server; the output."""
    port = _free_port()
    text = script.replace("--port 8000", f"--port {port}").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f'{text}\nkill -TERM $!\nwait $! && echo "ended gracefully"'],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = shell.communicate(timeout=90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    assert shell.returncode == 0, output + errors
    assert "ended gracefully" in output
    return output


def test_the_readme_serves_an_onnx_model(checkout: Path, tmp_path: Path) -> None:
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    save_linear(tmp_path / "model.onnx", weights)
    page = checkout / "README.md"
    python = _block(page, "python", "tritonclient")
    output = _type(f"{_block(page, 'bash', '--as scorer')}\necho\npython3 - <<'EOF'\n{python}EOF", tmp_path)
    expected = np.array([[1, 2, 3, 4]], np.float32) @ weights
    answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert answer["outputs"][0]["data"] == expected.ravel().tolist()
    assert str(expected) in output, "the Python client shows the same numbers"


def test_the_language_example_names_the_language(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(checkout / "examples")
    script = _block(checkout / "examples" / "README.md", "bash", "headrace serve")
    output = _type(f"{script}\necho", tmp_path)
    answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert answer["language"] == "de"
    assert max(answer["scores"], key=answer["scores"].get) == "de"
