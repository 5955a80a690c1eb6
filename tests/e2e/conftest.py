"""A real `headrace serve` process over a small repository of real models, for everything that talks HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.testing.language import save_language_model
from headrace.testing.models import save_graph

SLOW = """
import time

def run(tensors):
    time.sleep(float(tensors["seconds"].max()))
    return {"slept": tensors["seconds"]}
"""

BROKEN = """
def run(tensors):
    raise RuntimeError("the model's own fault")
"""

SHOUT = """
from headrace.serve.protocol import Payload

class Shout:
    inline = True

    def process(self, payload: Payload, ctx) -> Payload:
        payload.result = payload.text.upper()
        return payload
"""

LLM = 'backend = "llm"\n[llm]\nthreads = 1\nsampling = { max_tokens = 8 }\n'

SECONDS = 'name = "seconds"\ndatatype = "FP32"\nshape = [-1]\n'


def onnx_mlp(path: Path) -> None:
    """x [n, 16] -> Gemm -> Relu -> Gemm -> y [n, 4], seeded."""
    random = np.random.default_rng(0)
    shapes = {"w1": (16, 64), "b1": (64,), "w2": (64, 4), "b2": (4,)}
    weights = {name: (random.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        ("Gemm", ["x", "w1", "b1"], ["a"], {}),
        ("Relu", ["a"], ["h"], {}),
        ("Gemm", ["h", "w2", "b2"], ["y"], {}),
    ]
    save_graph(path, nodes, [("x", "FLOAT", ["n", 16])], [("y", "FLOAT", ["n", 4])], weights)


def onnx_identity(path: Path) -> None:
    """x [n, m] of FP32 and names [n] of strings, both unchanged."""
    nodes = [("Identity", ["x"], ["y"], {}), ("Identity", ["names"], ["same_names"], {})]
    inputs = [("x", "FLOAT", ["n", "m"]), ("names", "STRING", ["n"])]
    outputs = [("y", "FLOAT", ["n", "m"]), ("same_names", "STRING", ["n"])]
    save_graph(path, nodes, inputs, outputs)


def make_repository(root: Path) -> Path:
    def model(name: str, toml: str, **files: str) -> Path:
        folder = root / name / "1"
        folder.mkdir(parents=True)
        (root / name / "headrace.toml").write_text(toml)
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(text)
        return folder

    python = f'backend = "python"\nentry = "code:run"\n[[inputs]]\n{SECONDS}[[outputs]]\n'
    onnx_mlp(model("mlp", 'backend = "onnx"\nallow_nan = false\n') / "model.onnx")
    onnx_identity(model("identity", 'backend = "onnx"\n') / "model.onnx")
    model("slow", python + SECONDS.replace("seconds", "slept"), code=SLOW)
    model("broken", python + SECONDS, code=BROKEN)
    (model("corrupt", 'backend = "onnx"\n') / "model.onnx").write_bytes(b"this is not a model")
    model("typo", 'backend = "onnx"\n[batching]\nmax_bach = 4\n')
    save_language_model(model("writer", LLM) / "writer.gguf")
    shout = root / "shout"
    shout.mkdir()
    (shout / "headrace.toml").write_text('consumes = "text"\n[[stage]]\nop = "shout:Shout"\n')
    (shout / "shout.py").write_text(SHOUT)
    return root


X = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}


class Running:
    """A server process, its port, and a plain client."""

    def __init__(self, repo: Path, *options: str) -> None:
        self.repo = repo
        self.log = repo.parent / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "serve", str(repo), "--port", "0", *options],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.port = self._wait()

    def _wait(self) -> int:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"server exited {self.process.returncode}: {self.log.read_text()}")
            found = re.search(r"serving .* on http://[^:]+:(\d+)", self.log.read_text())
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise RuntimeError(f"server not up: {self.log.read_text()}")

    def request(self, method: str, path: str, body=None, headers=None, timeout=30):
        """Status, headers and decoded body (JSON where it is)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body).encode() if isinstance(body, dict | list) else body
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            raw = response.read()
            kind = response.headers.get("content-type", "")
            return response.status, response.headers, json.loads(raw) if kind.startswith("application/json") else raw
        finally:
            connection.close()

    def infer(self, model="mlp", inputs=(X,), headers=None, **extra):
        return self.request("POST", f"/v2/models/{model}/infer", {"inputs": list(inputs), **extra}, headers)

    def sleep(self, seconds, headers=None, **extra):
        """Ask the model that sleeps."""
        wish = {"name": "seconds", "shape": [1], "datatype": "FP32", "data": [seconds]}
        return self.infer("slow", [wish], headers, **extra)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture(scope="session")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("serve") / "models")


@pytest.fixture(scope="session")
def server(repository):
    running = Running(repository)
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture
def start(tmp_path):
    """Start further servers over a fresh repository; they are stopped at the end of the test."""
    started = []

    def run(*options: str, without: tuple[str, ...] = ()) -> Running:
        root = make_repository(tmp_path / f"run{len(started)}" / "models")
        for name in without:
            shutil.rmtree(root / name)
        started.append(Running(root, *options))
        return started[-1]

    yield run
    _end(started)


@pytest.fixture
def start_at():
    """Start a server over a path of one's own."""
    started = []

    def run(path: Path, *options: str) -> Running:
        started.append(Running(path, *options))
        return started[-1]

    yield run
    _end(started)


def _end(started: list[Running]) -> None:
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(10)
