"""What is given from outside: a backend that joins its requests itself, endpoints beside and in place of ours."""

import asyncio
import http.client
import json

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.core.telemetry import Registry
from headrace.errors import Cancelled, ConfigError, DeadlineExceeded, InvalidInput, StageFailed, Unavailable
from headrace.serve.codec.message import Response
from headrace.serve.codec.router import Route
from headrace.serve.config import load_config
from headrace.serve.metrics import ServeMetrics
from headrace.serve.protocol import TensorSpec
from headrace.serve.repository import Repository
from headrace.serve.routes.body import json_response, operation
from headrace.serve.server import Server, ServerSettings

X = np.array([b"hold"], object)


class Crowd:
    """A concurrent backend that answers each request when told to; "bad" is refused, "odd" raises."""

    inputs = (TensorSpec("x", np.dtype(object), ()),)
    outputs = (TensorSpec("y", np.dtype(object), ()),)
    thread_safe = True

    def __init__(self, word="go"):
        self.word = word
        self.calls = []
        self.go = asyncio.Event()
        self.elsewhere = asyncio.Event()
        self.elsewhere.set()

    def load(self):
        self.calls.append("load")

    def warm(self):
        self.calls.append("warm")

    def infer(self, tensors):
        raise AssertionError("answer stands for it")

    def drain(self):
        self.calls.append("drain")

    def free(self):
        self.calls.append("free")

    async def answer(self, tensors, ctx, parameters):
        if tensors["x"][0] == b"bad":
            raise InvalidInput("bad x")
        if tensors["x"][0] == b"odd":
            raise ValueError("odd x")
        await self.go.wait()
        return {"y": tensors["x"]}

    async def settle(self):
        await self.elsewhere.wait()


@pytest.fixture
async def crowd(disk):
    """A repository whose model `c` is a `Crowd`, and the backends it made."""
    disk.config("c", 'backend = "llm"\n[llm]\nword = "hey"\n')
    (disk.root / "c" / "1").mkdir()
    made = []

    def build(config, folder):
        if set(config.llm) - {"word"}:
            raise ConfigError(f"[llm]: {config.llm}")
        made.append(Crowd(**config.llm))
        return made[-1]

    repository = Repository(disk.root, drain_timeout_s=10, plugins={"llm": build})
    await repository.start()
    yield repository, made
    for backend in made:
        backend.go.set()
        backend.elsewhere.set()
    await repository.close()


async def test_a_plugin_is_loaded_listed_and_freed_like_any_other(crowd, states):
    repository, made = crowd
    assert states(repository) == {("c", "1"): "READY"}
    model = repository.get("c")
    assert (model.platform, model.joinable, model.backend.word) == ("llm", False, "hey")
    await repository.unload("c")
    assert made[0].calls == ["load", "warm", "drain", "free"]


async def test_requests_go_to_it_at_once_each_its_own(crowd):
    repository, made = crowd
    model = repository.get("c")
    running = [asyncio.ensure_future(model.infer({"x": np.array([b"%d" % i], object)}, Context())) for i in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert model._batcher.running == 50
    made[0].go.set()
    assert [(await answer)["y"][0] for answer in running] == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize(("x", "error"), [(b"bad", InvalidInput), (b"odd", StageFailed)])
async def test_what_it_raises_reaches_the_caller(crowd, x, error):
    with pytest.raises(error, match=f"{x.decode()} x"):
        await crowd[0].get("c").infer({"x": np.array([x], object)}, Context())


async def test_the_end_of_a_context_stops_the_work(crowd):
    model = crowd[0].get("c")
    with pytest.raises(DeadlineExceeded):
        await model.infer({"x": X}, Context(timeout_s=0.02))
    ctx = Context()
    running = asyncio.ensure_future(model.infer({"x": X}, ctx))
    await asyncio.sleep(0.01)
    ctx.cancel()
    with pytest.raises(Cancelled):
        await running
    await asyncio.sleep(0.01)
    assert model._batcher.running == 0


async def test_a_reload_lets_what_runs_finish_also_what_came_another_way(crowd, until):
    repository, made = crowd
    old = repository.get("c")
    made[0].elsewhere.clear()
    running = asyncio.ensure_future(old.infer({"x": X}, Context()))
    await asyncio.sleep(0)
    await repository.load("c")
    assert repository.get("c") is not old
    await until(lambda: old._closing is not None)
    with pytest.raises(Unavailable):
        await old.infer({"x": X}, Context())
    made[0].go.set()
    assert (await running)["y"][0] == b"hold"
    await asyncio.sleep(0.05)
    assert made[0].calls == ["load", "warm"], "a generation still runs elsewhere"
    made[0].elsewhere.set()
    await until(lambda: made[0].calls == ["load", "warm", "drain", "free"])


async def test_what_outlasts_the_draining_is_given_up(crowd):
    model = crowd[0].get("c")
    running = asyncio.ensure_future(model.infer({"x": X}, Context()))
    await asyncio.sleep(0)
    await model.close(0.02)
    with pytest.raises(Cancelled, match="unloaded before"):
        await running
    assert model.backend.calls[-1] == "free"


async def test_a_wrong_table_is_told_with_its_file_and_without_a_plugin_so_is_the_backend(crowd, disk, opened):
    repository, _ = crowd
    disk.config("c", 'backend = "llm"\n[llm]\nwrod = "hey"\n')
    with pytest.raises(ConfigError, match=r"headrace\.toml: \[llm\]: .*wrod"):
        await repository.load("c")
    plain = await opened()
    with pytest.raises(Unavailable, match='`backend` is \'llm\'; here it can be "onnx", "python"'):
        plain.get("c")


def test_a_language_model_may_take_longer_and_its_table_is_its_own(disk):
    disk.config("c", 'backend = "llm"\n')
    assert load_config(disk.root / "c" / "headrace.toml").timeout_s == 600
    disk.config("c", 'backend = "llm"\ntimeout_s = 5\n')
    assert load_config(disk.root / "c" / "headrace.toml").timeout_s == 5
    disk.config("c", 'backend = "onnx"\n[llm]\nthreads = 2\n')
    with pytest.raises(ConfigError, match=r"`\[llm\]` goes with"):
        load_config(disk.root / "c" / "headrace.toml")


def _teapot(error, request_id):
    return Response((str(error).encode(),), error.http_status, "text/plain", "x-id: " + request_id + "\r\n")


async def test_routes_come_beside_and_in_place_of_the_server_s(disk):
    seen = []

    def extend(routes):
        old = {(route.method, route.path): route.handler for route in routes}

        def generate(request, params):
            seen.append(bytes(request.body))
            return old["POST", "/generate"](request, params)

        def fresh(request, params):
            if params["what"] == "none":
                raise InvalidInput("none of that")
            request.respond(json_response(params))

        return [
            Route("POST", "/generate", generate, operation("Ours", tag="pipelines")),
            Route("GET", "/v9/{what}", fresh, operation("New", tag="new", params=("what",)), error_response=_teapot),
        ]

    metrics = ServeMetrics(Registry())
    repository = Repository(disk.root, metrics)
    server = Server(repository, metrics, ServerSettings(port=0), extend=extend)
    await server.start()
    await repository.start()

    def fetch(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read(), response.headers
        finally:
            connection.close()

    status, body, _ = await asyncio.to_thread(fetch, "POST", "/generate", b'{"text": "a"}')
    assert (status, seen) == (400, [b'{"text": "a"}'])
    assert json.loads(body)["type"] == "InvalidInput"
    assert (await asyncio.to_thread(fetch, "GET", "/v9/a"))[1] == b'{"what":"a"}'
    status, body, headers = await asyncio.to_thread(fetch, "GET", "/v9/none")
    assert (status, body, headers["content-type"]) == (400, b"none of that", "text/plain")
    document = json.loads((await asyncio.to_thread(fetch, "GET", "/openapi.json"))[1])
    assert document["paths"]["/generate"]["post"]["summary"] == "Ours"
    assert "/v9/{what}" in document["paths"]
    await server.stop()
