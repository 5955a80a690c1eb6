import asyncio
import gc
import hashlib
import threading
import weakref

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, Conflict, IntegrityError, InvalidInput, LoadFailed, NotFound, Unavailable
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload
from headrace.serve.repository import Repository
from headrace.store.edit import Fetched
from headrace.store.manifest import FileEntry
from headrace.store.versions import Repository as Store
from headrace.testing.models import save_linear

ONE = np.ones((1, 2), np.float32)
ONNX = 'backend = "onnx"\n'
PYTHON = (
    'backend = "python"\nentry = "model:model"\n'
    '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [-1, 2]\n'
    '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = [-1, 2]\n'
)
PIPELINE = '[[stage]]\nop = "infer"\nwith = { model = "m" }\n'


class Disk:
    """Writes models into a repository folder."""

    def __init__(self, root):
        self.root = root
        root.mkdir()

    def config(self, name, text):
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / "headrace.toml").write_text(text)

    def loose(self, name, version, factor, config=ONNX):
        """A version folder without a manifest: y = factor * x."""
        self.config(name, config)
        save_linear(self.root / name / version / "model.onnx", np.eye(2) * factor)

    def install(self, name, version, factor, config=ONNX):
        """A version with a manifest, made current."""
        self.config(name, config)

        def fill(folder):
            path = save_linear(folder / "model.onnx", np.eye(2) * factor)
            data = path.read_bytes()
            return Fetched("file:test", [FileEntry("model.onnx", len(data), hashlib.sha256(data).hexdigest())])

        with Store(self.root).edit(name) as model:
            model.install(fill, version=version)
            model.switch(version)

    def python(self, name, source, version="1"):
        self.config(name, PYTHON)
        (self.root / name / version).mkdir(exist_ok=True)
        (self.root / name / version / "model.py").write_text(source)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "models")


@pytest.fixture
async def opened(disk):
    """Start a repository over the disk; closed at the end of the test."""
    repositories = []

    async def start():
        repositories.append(Repository(disk.root, drain_timeout_s=10))
        await repositories[-1].start()
        return repositories[-1]

    yield start
    for repository in repositories:
        await repository.close()


async def factor(repository, name="m"):
    answer = await repository.get(name).infer({"x": ONE}, Context(timeout_s=20))
    return float(answer["y"][0, 0])


async def through(repository, name="p"):
    answer = await repository.get(name).run(Payload(tensors={"x": ONE}), Context(timeout_s=20))
    return float(answer.tensors["y"][0, 0])


def states(repository):
    return {(line["name"], line["version"]): line["state"] for line in repository.index()}


async def test_loads_models_and_pipelines_and_says_when_it_is_ready(disk, opened):
    disk.install("m", "v1", 2)
    disk.config("p", PIPELINE)
    fresh = Repository(disk.root)
    assert fresh.not_ready() == "loading"
    await fresh.close()
    repository = await opened()
    assert repository.not_ready() == ""
    assert await factor(repository) == await through(repository) == 2
    assert repository.index() == [
        {"name": "m", "version": "v1", "state": "READY", "reason": ""},
        {"name": "p", "version": "1", "state": "READY", "reason": ""},
    ]
    assert [m.name for m in repository.models()] == ["m"]
    assert [p.name for p in repository.pipelines()] == ["p"]
    await repository.close()
    assert repository.not_ready() == "closed"


async def test_without_current_the_highest_number_is_served_and_the_index_says_it_is_not_verified(disk, opened):
    for version in ("2", "10", "9", "draft"):
        disk.loose("m", version, int(version) if version.isdigit() else 77)
    repository = await opened()
    assert await factor(repository) == 10
    assert repository.index()[0]["reason"] == "not verified: version '10' has no manifest"


@pytest.mark.parametrize("damage", ["changed", "extra", "no manifest"])
async def test_damaged_files_are_never_served(disk, opened, damage):
    disk.install("m", "v1", 2)
    folder = disk.root / "m" / "v1"
    match damage:
        case "changed":
            data = bytearray((folder / "model.onnx").read_bytes())
            data[-1] ^= 1
            (folder / "model.onnx").write_bytes(data)
        case "extra":
            (folder / "other.onnx").write_bytes(b"")
        case "no manifest":
            (folder / "manifest.json").unlink()
    repository = await opened()
    assert states(repository) == {("m", "v1"): "UNAVAILABLE"}
    assert str(folder) in repository.index()[0]["reason"]
    with pytest.raises(Unavailable, match="'m' is unavailable: "):
        repository.get("m")
    with pytest.raises(IntegrityError):
        await repository.load("m")


async def test_one_bad_model_leaves_the_server_up_and_its_reason_in_the_index(disk, opened):
    disk.loose("m", "1", 2)
    disk.config("bad-toml", "backend = onnx")
    disk.config("bad-key", 'backend = "onnx"\nbatchign = 3\n')
    disk.config("no-version", ONNX)
    disk.python("bad-code", "1/0")
    (disk.root / "Bad Name").mkdir()
    disk.config("Bad Name", ONNX)
    repository = await opened()
    assert await factor(repository) == 2
    assert repository.not_ready() == ""
    reasons = {line["name"]: line["reason"] for line in repository.index() if line["state"] == "UNAVAILABLE"}
    assert set(reasons) == {"bad-toml", "bad-key", "no-version", "bad-code", "Bad Name"}
    assert "batchign" in reasons["bad-key"]
    assert "has no version folder" in reasons["no-version"]
    assert "ZeroDivisionError" in reasons["bad-code"]
    assert "model name 'Bad Name'" in reasons["Bad Name"]


async def test_what_is_not_there_is_told_with_what_is(disk, opened):
    disk.loose("m", "1", 2)
    repository = await opened()
    with pytest.raises(NotFound, match="no model or pipeline 'x'; there are: m"):
        repository.get("x")
    with pytest.raises(NotFound, match="'m' has no version '2' loaded; loaded is '1'"):
        repository.get("m", "2")
    assert repository.get("m", "1") is repository.get("m")
    for name in ("x", "../models/m", ""):
        with pytest.raises(NotFound):
            await repository.load(name)
        with pytest.raises(NotFound):
            await repository.unload(name)


async def test_a_folder_that_is_not_there_is_told(tmp_path):
    repository = Repository(tmp_path / "none")
    with pytest.raises(NotFound, match="none: no such folder"):
        await repository.start()
    await repository.close()


async def test_a_folder_that_appears_later_is_loaded_by_name(disk, opened):
    repository = await opened()
    disk.loose("m", "1", 3)
    await repository.load("m")
    assert await factor(repository) == 3


async def test_reload_swaps_under_load_with_no_failed_request(disk, opened):
    disk.install("m", "v1", 1)
    disk.config("p", PIPELINE)
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
    disk.config("p", PIPELINE)
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


async def test_a_reload_that_fails_keeps_the_old_version_and_tells_both(disk, opened):
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


async def test_a_request_in_flight_finishes_on_the_version_it_began_with(disk, opened):
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
    disk.python("m", source.replace("class Model", "class model"))
    disk.config("m", PYTHON + '[runtime]\nexecution = "thread"\n')
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


async def test_unload_is_refused_while_a_pipeline_needs_the_model(disk, opened):
    disk.loose("m", "1", 2)
    disk.config("p", PIPELINE)
    repository = await opened()
    with pytest.raises(Conflict, match="model 'm' is needed by 'p'"):
        await repository.unload("m")
    assert await through(repository) == 2
    await repository.unload("m", unload_dependents=True)
    assert states(repository) == {("m", "1"): "UNAVAILABLE", ("p", "1"): "UNAVAILABLE"}
    with pytest.raises(NotFound, match="'m' is unloaded"):
        repository.get("m")
    await repository.unload("m")
    await repository.load("p")
    assert await through(repository) == await factor(repository) == 2


async def test_unload_waits_for_requests_in_flight_and_gives_the_memory_back(disk, opened):
    disk.loose("m", "1", 2)
    repository = await opened()
    backend = weakref.ref(repository.get("m")._backend)
    running = [asyncio.create_task(factor(repository)) for _ in range(50)]
    await asyncio.sleep(0)
    await repository.unload("m")
    assert await asyncio.gather(*running) == [2.0] * 50
    del running
    gc.collect()
    assert backend() is None


async def test_a_pipeline_waits_for_its_model(disk, opened):
    disk.config("p", PIPELINE)
    repository = await opened()
    assert "pipeline 'p' needs a model: no model or pipeline 'm'" in repository.index()[0]["reason"]
    with pytest.raises(Unavailable):
        await repository.load("p")
    disk.loose("m", "1", 5)
    await repository.load("m")
    assert await through(repository) == 5


async def test_a_pipeline_that_names_a_pipeline_or_itself_is_told(disk, opened):
    disk.config("p", PIPELINE.replace('"m"', '"p"'))
    disk.config("q", PIPELINE.replace('"m"', '"p"'))
    repository = await opened()
    async with asyncio.timeout(10):
        for name in ("p", "q"):
            with pytest.raises(Unavailable, match="needs a model"):
                await repository.load(name)


async def test_a_bad_stage_fails_the_pipeline_by_name(disk, opened):
    disk.config("p", '[[stage]]\nop = "infer"\nwith = { modle = "m" }\n')
    repository = await opened()
    with pytest.raises(ConfigError, match="stage 'infer': unknown option 'modle'"):
        await repository.load("p")
    assert "unknown option 'modle'" in repository.index()[0]["reason"]


async def test_user_stages_lie_beside_the_pipeline_and_take_effect_on_reload(disk, opened):
    disk.config("p", '[[stage]]\nop = "stages:shout"\nwith = { mark = "!" }\n')
    code = disk.root / "p" / "stages.py"
    code.write_text(
        "def shout(payload, ctx, *, mark: str):\n    payload.text = payload.text.upper() + mark\n    return payload\n"
    )
    repository = await opened()
    assert (await repository.get("p").run(Payload(text="hi"), Context())).text == "HI!"
    assert repository.get("p").describe()["stages"][0]["op"] == "stages:shout"
    code.write_text(
        "def shout(payload, ctx, *, mark: str):\n    payload.text = mark + payload.text\n    return payload\n"
    )
    await repository.load("p")
    assert (await repository.get("p").run(Payload(text="hi"), Context())).text == "!hi"


async def test_loads_and_unloads_of_one_model_take_turns(disk, opened):
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


async def test_a_caller_that_leaves_does_not_stop_the_load(disk, opened):
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


async def test_an_unexpected_error_while_loading_is_a_failed_load(disk, opened, monkeypatch):
    disk.loose("m", "1", 2)
    (disk.root / "m" / "current").symlink_to("gone")
    repository = await opened()
    assert await factor(repository) == 2
    (disk.root / "m" / "headrace.toml").chmod(0o644)
    monkeypatch.setattr("headrace.serve.backends.create", lambda *_: 1 / 0)
    with pytest.raises(LoadFailed, match="'m': ZeroDivisionError"):
        await repository.load("m")
    assert await factor(repository) == 2


async def test_nothing_loads_once_it_is_closed(disk, opened):
    disk.loose("m", "1", 2)
    repository = await opened()
    await asyncio.gather(repository.close(), repository.load("m"), return_exceptions=True)
    await repository.close()
    with pytest.raises(Unavailable, match="closed"):
        await repository.load("m")
    with pytest.raises(Unavailable):
        repository.get("m")


async def test_stage_metrics_are_counted(disk, opened):
    from headrace.core.telemetry import render

    disk.loose("m", "1", 2)
    disk.config("p", PIPELINE)
    repository = await opened()
    await through(repository)
    with pytest.raises(InvalidInput):
        await repository.get("p").run(Payload(), Context())
    text = render(repository.metrics.registry)[0].decode()
    assert 'headrace_stage_seconds_count{pipeline="p",stage="infer"} 2.0' in text
    assert 'headrace_stage_failures_total{error="InvalidInput",pipeline="p",stage="infer"} 1.0' in text
    assert "headrace_stage_threads_abandoned 0.0" in text


async def test_a_pipeline_from_the_repository_describes_itself(disk, opened):
    disk.loose("m", "1", 2)
    disk.config("p", PIPELINE)
    pipeline = (await opened()).get("p")
    assert isinstance(pipeline, Pipeline)
    assert pipeline.describe()["stages"] == [
        {"name": "infer", "op": "headrace.serve.infer:Infer", "after": [], "timeout_s": None}
    ]
