"""docs/http-api.md names the endpoints that the server has, and its requests are answered."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSIONED = "/versions/{version}"


@pytest.fixture(scope="module")
def rows(checkout: Path) -> Iterator[list[tuple[list[str], str]]]:
    """(endpoints, example) of every row."""
    page = (checkout / "docs" / "http-api.md").read_text("utf-8")
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| `(GET|POST) ", line)]
    assert all(len(row) == 3 for row in cells)
    return [(re.findall(r"`((?:GET|POST) [^`]+)`", first), example.strip("`")) for first, _, example in cells]


def _documented(server) -> set[str]:
    _, _, document = server.request("GET", "/openapi.json")
    return {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}


def test_the_page_and_the_server_name_the_same_endpoints(server, rows) -> None:
    named = {endpoint for endpoints, _ in rows for endpoint in endpoints}
    twice = {re.sub(r"(/v2/models/\{model\})(?=/(infer|ready|config|stats)$|$)", r"\1" + VERSIONED, e) for e in named}
    assert named | twice == _documented(server)


@pytest.mark.skipif(not shutil.which("curl"), reason="the examples use curl")
def test_the_requests_are_answered(server, rows, tmp_path: Path) -> None:
    """Models of the test's repository stand for those of the page; unload comes last."""
    (tmp_path / "page.png").write_bytes(b"bytes of a page")
    x = json.dumps({"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1] * 16}]})
    for endpoints, example in rows:
        command = re.sub(r"ocr-det|scorer", "mlp", example).replace("pipelines/ocr", "pipelines/shout")
        command = command.replace("smollm2", "writer")
        command = re.sub(r"""'\{"inputs".*\}'""", f"'{x}'", command)
        script = f"url=http://127.0.0.1:{server.port}\n{command} -f -o answer"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (endpoints, command, done.stderr)
    assert server.request("POST", "/v2/repository/models/mlp/load")[0] == 200
