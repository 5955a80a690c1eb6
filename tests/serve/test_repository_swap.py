import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import IntegrityError, LoadFailed
from headrace.serve.protocol import Payload


async def test_reload_swaps_under_load_with_no_failed_request(disk, opened, factor, through, states):
    disk.install("m", "v1", 1)
    disk.pipeline("p")
    repository = await opened()
    stop, answers = False, []

    async def client(ask):
        while not stop:
            answers.append(await ask(repository))
            await asyncio.sleep(0)

    clients = [asyncio.create_task(client(ask)) for ask in (factor, through) for _ in range(6)]
    for version in range(2, 8):
        disk.install("m", f"v{version}", version)
        await repository.load("m")
        seen = len(answers)
        while len(answers) < seen + 30:  # noqa: ASYNC110 - the clients fill it
            await asyncio.sleep(0)
        if version % 2:
            await repository.load("p")
    stop = True
    await asyncio.gather(*clients)
    assert set(answers) == {1, 2, 3, 4, 5, 6, 7}
    assert states(repository) == {("m", "v7"): "READY", ("p", "1"): "READY"}


async def test_ragged_rows_survive_a_swap_between_resolving_and_running(disk, opened):
    disk.loose("m", "1", 1)
    disk.pipeline("p")
    repository = await opened()

    async def client():
        rows = [np.ones(2, np.float32)] * 4
        answer = await repository.get("p").run(Payload(tensors={"x": rows}), Context(timeout_s=20))
        return [float(row[0]) for row in answer.tensors["y"]]

    running = True

    async def clients():
        while running:
            assert set(await client()) <= {1.0, 2.0}

    tasks = [asyncio.create_task(clients()) for _ in range(8)]
    for version in range(10):
        disk.loose("m", "1", 1 + version % 2)
        await repository.load("m")
    running = False
    await asyncio.gather(*tasks)


async def test_a_reload_that_fails_keeps_the_old_version_and_tells_both(disk, opened, factor, states):
    disk.install("m", "v1", 1)
    repository = await opened()
    disk.install("m", "v2", 2)
    data = bytearray((disk.root / "m" / "v2" / "model.onnx").read_bytes())
    data[-1] ^= 1
    (disk.root / "m" / "v2" / "model.onnx").write_bytes(data)
    with pytest.raises(IntegrityError):
        await repository.load("m")
    assert await factor(repository) == 1
    assert [line["state"] for line in repository.index()] == ["READY", "UNAVAILABLE"]
    disk.install("m", "v3", 3)
    await repository.load("m")
    assert await factor(repository) == 3
    assert states(repository) == {("m", "v3"): "READY"}


async def test_a_request_in_flight_finishes_on_the_version_it_began_with(disk, opened, factor):
    source = """
import threading, time
from pathlib import Path
HERE = Path(__file__).parent
class Model:
    def warm(self): pass
    def infer(self, tensors):
        (HERE.parent / "started").touch()
        while not (HERE.parent / "go").exists():
            time.sleep(0.002)
        return {"y": tensors["x"] * 1}
    def free(self):
        with (HERE.parent / "freed").open("a") as file:
            file.write("x")
"""
    disk.python("m", source.replace("class Model", "class model"), more='[runtime]\nexecution = "thread"\n')
    repository = await opened()
    old = asyncio.create_task(factor(repository))
    async with asyncio.timeout(10):
        while not (disk.root / "m" / "started").exists():  # noqa: ASYNC110 - a thread makes it
            await asyncio.sleep(0.002)
    disk.python("m", "def model(tensors):\n    return {'y': tensors['x'] * 2}\n", version="2")
    await repository.load("m")
    assert await factor(repository) == 2
    assert not (disk.root / "m" / "freed").exists()
    assert not old.done()
    (disk.root / "m" / "go").touch()
    assert await old == 1
    await repository.close()
    assert (disk.root / "m" / "freed").read_text() == "x"


async def test_unload_waits_for_requests_in_flight_and_gives_the_memory_back(disk, opened, factor):
    disk.loose("m", "1", 2)
    repository = await opened()
    backend = weakref.ref(repository.get("m").backend)
    running = [asyncio.create_task(factor(repository)) for _ in range(50)]
    await asyncio.sleep(0)
    await repository.unload("m")
    assert await asyncio.gather(*running) == [2.0] * 50
    del running
    gc.collect()
    assert backend() is None


async def test_loads_and_unloads_of_one_model_take_turns(disk, opened, factor):
    disk.loose("m", "1", 2)
    repository = await opened()
    threads = threading.active_count()
    results = await asyncio.gather(
        *(repository.load("m") if i % 3 else repository.unload("m") for i in range(30)), return_exceptions=True
    )
    assert [r for r in results if r is not None] == []
    await repository.load("m")
    assert await factor(repository) == 2
    await repository.unload("m")
    async with asyncio.timeout(10):
        while threading.active_count() > threads + 1:  # noqa: ASYNC110 - threads end by themselves
            await asyncio.sleep(0.002)


async def test_a_caller_that_leaves_does_not_stop_the_load(disk, opened, factor):
    disk.loose("m", "1", 2)
    repository = await opened()
    disk.loose("m", "2", 3)
    task = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10):
        while await factor(repository) != 3:  # noqa: ASYNC110 - the load goes on by itself
            await asyncio.sleep(0.002)


async def test_an_unexpected_error_while_loading_is_a_failed_load(disk, opened, factor, monkeypatch):
    disk.loose("m", "1", 2)
    (disk.root / "m" / "current").symlink_to("gone")
    repository = await opened()
    assert await factor(repository) == 2
    (disk.root / "m" / "headrace.toml").chmod(0o644)
    monkeypatch.setattr("headrace.serve.backends.create", lambda *_: 1 / 0)
    with pytest.raises(LoadFailed, match="'m': ZeroDivisionError"):
        await repository.load("m")
    assert await factor(repository) == 2
