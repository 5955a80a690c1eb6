"""What tests of the inference plane share: stages that leave marks or hang, and a repository folder to serve from."""

import asyncio
import hashlib
import threading

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.serve.graph import Graph, Step
from headrace.serve.plan import Plan
from headrace.serve.protocol import Payload
from headrace.serve.repository import Repository
from headrace.serve.workers import Workers
from headrace.store.edit import Fetched
from headrace.store.manifest import FileEntry
from headrace.store.versions import ModelStore as Store
from headrace.testing.models import save_linear

ONE = np.ones((1, 2), np.float32)
ONNX = 'backend = "onnx"\n'
PYTHON = (
    'backend = "python"\nentry = "model:model"\n'
    '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [-1, 2]\n'
    '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = [-1, 2]\n'
)


class Mark:
    """A blocking stage that appends its name and its thread to the payload's metadata."""

    def __init__(self, name):
        self.name = name

    def process(self, payload, ctx):
        payload.metadata["path"] = [*payload.metadata.get("path", ()), self.name]
        payload.metadata[self.name] = threading.current_thread()
        return payload


class AsyncMark(Mark):
    async def process(self, payload, ctx):
        await asyncio.sleep(0)
        return Mark.process(self, payload, ctx)


class InlineMark(Mark):
    inline = True


MARKS = {"thread": Mark, "loop": AsyncMark, "inline": InlineMark}


class Hang:
    """A blocking stage that waits until it is let go."""

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()

    def process(self, payload, ctx):
        self.started.set()
        assert self.go.wait(20)
        return payload


class Disk:
    """Writes models and pipelines into a repository folder."""

    def __init__(self, root):
        self.root = root
        root.mkdir()

    def config(self, name, text=ONNX):
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / "headrace.toml").write_text(text)

    def loose(self, name, version, factor):
        """A version folder without a manifest: y = factor * x."""
        self.config(name)
        save_linear(self.root / name / version / "model.onnx", np.eye(2) * factor)

    def install(self, name, version, factor):
        """A version with a manifest, made current."""
        self.config(name)

        def fill(folder):
            path = save_linear(folder / "model.onnx", np.eye(2) * factor)
            data = path.read_bytes()
            return Fetched("file:test", [FileEntry("model.onnx", len(data), hashlib.sha256(data).hexdigest())])

        with Store(self.root).edit(name) as model:
            model.install(fill, version=version)
            model.switch(version)

    def python(self, name, source, version="1", more=""):
        """A model in Python; `more` is appended to its configuration."""
        self.config(name, PYTHON + more)
        (self.root / name / version).mkdir(exist_ok=True)
        (self.root / name / version / "model.py").write_text(source)

    def pipeline(self, name, model="m"):
        """A pipeline of one stage, which runs `model`."""
        self.config(name, f'[[stage]]\nop = "infer"\nwith = {{ model = "{model}" }}\n')


@pytest.fixture(scope="session")
def mark():
    """`mark("b", "loop")` is a stage that leaves its name behind, run in a "thread", on the "loop" or "inline"."""
    return lambda name, where="thread": MARKS[where](name)


@pytest.fixture(scope="session")
def step(mark):
    """`step("b", ("a",))` is a step that leaves its name behind, or runs the stage given."""
    return lambda name, after=None, stage=None, timeout_s=None: Step(stage or mark(name), name, after, timeout_s)


@pytest.fixture(scope="session")
def make_hang():
    return Hang


@pytest.fixture(scope="session")
def until():
    """`await until(condition)` returns once the condition holds, and fails after ten seconds."""

    async def wait(condition):
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - another thread makes it true
                await asyncio.sleep(0.001)

    return wait


@pytest.fixture
def workers():
    pool = Workers(size=2)
    yield pool
    pool.close()


@pytest.fixture
def compiled(workers):
    """`compiled(*steps)` is the plan of a pipeline of these steps."""
    return lambda *steps: Plan("p", Graph("p", steps), workers, None)


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


@pytest.fixture(scope="session")
def factor():
    """`await factor(repository)` asks model `m` by what it multiplies."""

    async def ask(repository):
        answer = await repository.get("m").infer({"x": ONE}, Context(timeout_s=20))
        return float(answer["y"][0, 0])

    return ask


@pytest.fixture(scope="session")
def through():
    """`await through(repository)` asks pipeline `p` by what it multiplies."""

    async def ask(repository):
        answer = await repository.get("p").run(Payload(tensors={"x": ONE}), Context(timeout_s=20))
        return float(answer.tensors["y"][0, 0])

    return ask


@pytest.fixture(scope="session")
def states():
    """`states(repository)` is the state of each name and version in its index."""
    return lambda repository: {(line["name"], line["version"]): line["state"] for line in repository.index()}
