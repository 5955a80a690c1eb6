"""Programs of bench/ loaded as they are when run, and a small repository served over loopback."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.telemetry import Registry
from headrace.serve.metrics import ServeMetrics
from headrace.serve.repository import Repository
from headrace.serve.server import Server, ServerSettings

DOUBLE = """\
backend = "python"
entry = "model:double"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 3] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 3] }]
"""
JOIN = """\
backend = "python"
entry = "model:join"
inputs = [{ name = "a", datatype = "INT64", shape = [-1] }, { name = "s", datatype = "BYTES", shape = [-1] }]
outputs = [{ name = "t", datatype = "BYTES", shape = [-1] }]
"""
MODEL = """\
import numpy as np

def double(tensors):
    return {"y": tensors["x"] * 2}

def join(tensors):
    pairs = zip(tensors["a"], tensors["s"])
    return {"t": np.array([str(a).encode() + b":" + s for a, s in pairs], object)}
"""
STAGES = """\
def lines(payload, ctx):
    payload.result = {"lines": [
        {"text": word, "score": 0.25 * (i + 1), "box": [[0, 0], [1, 1]]}
        for i, word in enumerate(payload.text.split())
    ]}
    return payload

def facts(payload, ctx):
    payload.result = {"size": len(payload.data), "type": payload.media_type}
    return payload
"""


@pytest.fixture
def bench(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a program of bench/ by its path, as it is loaded when run; its modules are forgotten afterwards."""
    folder = checkout / "bench"
    if not folder.is_dir():
        pytest.skip("no bench/ here: not a source checkout")
    monkeypatch.setattr(sys, "path", [str(folder), str(folder / "serve"), *sys.path])
    before = set(sys.modules)

    def load(name: str) -> Any:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, config in (("double", DOUBLE), ("join", JOIN)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "headrace.toml").write_text(config)
        (root / name / "1" / "model.py").write_text(MODEL)
    for name, kind in (("lines", 'consumes = "text"'), ("facts", 'consumes = "bytes"')):
        (root / name).mkdir()
        (root / name / "headrace.toml").write_text(f'{kind}\n[[stage]]\nop = "stages:{name}"\n')
        (root / name / "stages.py").write_text(STAGES)
    return root


@pytest.fixture(scope="module")
def url(repository: Path) -> Iterator[str]:
    """A real server on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Server:
        metrics = ServeMetrics(Registry())
        models = Repository(repository, metrics)
        server = Server(models, metrics, ServerSettings(port=0))
        await models.start()
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    yield f"http://127.0.0.1:{server.port}"
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()
