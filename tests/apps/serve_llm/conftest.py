"""A server over a tiny language model, in this process, and ways to ask it: OpenAI's own client, and raw requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.apps.serve_llm.backend import LlmPlugin
from headrace.apps.serve_llm.routes import llm_routes
from headrace.core.telemetry import Registry, Tracer
from headrace.llm.engine import Engine
from headrace.serve.metrics import ServeMetrics
from headrace.serve.repository import Repository
from headrace.serve.server import Server, ServerSettings
from headrace.testing.language import save_language_model

MODEL = "tiny"
LLM = 'backend = "llm"\n[llm]\nthreads = 1\n'
SHOUT = """
def shout(payload, ctx):
    payload.result = payload.text.upper()
    return payload
"""


def make_repository(root: Path, table: str = "", context: int = 512) -> Path:
    """A language model `tiny`, and a text pipeline `shout`."""
    save_language_model(root / MODEL / "1" / "tiny.gguf", context=context)
    (root / MODEL / "headrace.toml").write_text(LLM + table)
    (root / "shout").mkdir()
    (root / "shout" / "headrace.toml").write_text('consumes = "text"\n[[stage]]\nop = "stages:shout"\n')
    (root / "shout" / "stages.py").write_text(SHOUT)
    return root


class Running:
    """A server on a thread of its own."""

    def __init__(self, root: Path, api_key: str = "", tracer: Tracer | None = None, **settings: Any) -> None:
        self.root = root
        self.registry = Registry()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.run(self._start(root, api_key, tracer, ServerSettings(port=0, **settings)))
        self.url = f"http://127.0.0.1:{self.server.port}"

    async def _start(self, root: Path, api_key: str, tracer: Tracer | None, settings: ServerSettings) -> None:
        metrics = ServeMetrics(self.registry)
        plugins = {"llm": LlmPlugin(self.registry, tracer)}
        self.repository = Repository(root, metrics, tracer=tracer, plugins=plugins, drain_timeout_s=20)
        self.server = Server(
            self.repository, metrics, settings, tracer, llm_routes(self.repository, 1 << 20, api_key=api_key)
        )
        await self.repository.start()
        await self.server.start()

    def run(self, work: Any) -> Any:
        """A coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def begin(self, work: Any) -> Any:
        """The same, not waited for."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    @property
    def engine(self) -> Engine:
        return self.repository.get(MODEL).backend.engine

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        )

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Status, headers and body (decoded where it is JSON)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            data = json.dumps(body).encode() if isinstance(body, dict | list) else body
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            raw = response.read()
            is_json = response.headers.get("content-type", "").startswith("application/json")
            return response.status, response.headers, json.loads(raw) if raw and is_json else raw
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """Status and body."""
        status, _, answer = self.request("POST", path, body, headers)
        return status, answer

    def gauge(self, name: str) -> float:
        """The present value of a series of the model."""
        text = self.request("GET", "/metrics")[2].decode()
        lines = [line for line in text.splitlines() if line.startswith(f'{name}{{model="{MODEL}"')]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def idle(self) -> bool:
        """No answer holds a page, and none waits."""
        return self.gauge("headrace_llm_kv_held_pages") == self.gauge("headrace_llm_waiting_answers") == 0


Start = Callable[..., Running]


@contextmanager
def serving(root: Path, **options: Any) -> Iterator[Running]:
    running = Running(root, **options)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that the tests share; no page may be held at the end."""
    with serving(make_repository(tmp_path_factory.mktemp("llm") / "models")) as running:
        yield running
        until(running.idle)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(table="", context=512, **options)` is a server of one's own; `table` is appended to `[llm]`."""
    started: list[Running] = []

    def run(table: str = "", context: int = 512, **options: Any) -> Running:
        root = make_repository(tmp_path / f"models{len(started)}", table, context)
        started.append(Running(root, **options))
        return started[-1]

    yield run
    for running in started:
        running.close()


@pytest.fixture
def client(served: Running) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("still not so after 20 s")


@pytest.fixture(scope="session", name="until")
def _until() -> Callable[[Callable[[], bool]], None]:
    """`until(condition)` returns once it holds."""
    return until
