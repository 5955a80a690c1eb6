import sys

import numpy as np
import pytest

from headrace.errors import ConfigError, InvalidInput, LoadFailed, StageFailed, Unavailable
from headrace.serve.backends import create
from headrace.serve.config import ModelConfig, TensorConfig
from headrace.testing.backend import check_backend, check_failed_load

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
X, Y = TensorConfig("x", "FP32", [-1, 2]), TensorConfig("y", "FP32", [-1])


@pytest.fixture
def make(tmp_path):
    """Write files into a version folder and build the backend for `entry`; freed at the end of the test."""
    made = []

    def build(source, entry="model:model", version="1", outputs=(Y,), **files):
        folder = tmp_path / "m" / version
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.py").write_text(source)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        config = ModelConfig(backend="python", entry=entry, inputs=[X], outputs=list(outputs))
        made.append(create(config, folder))
        return made[-1]

    yield build
    for backend in made:
        backend.free()


SUM = "def model(tensors):\n    return {'y': tensors['x'].sum(1)}\n"
CLASS = """
class Model:
    thread_safe = True
    log = []
    def load(self): self.log.append("load"); self.k = 2
    def warm(self): self.log.append("warm")
    def infer(self, tensors): return {"y": tensors["x"].sum(1) * self.k}
    def drain(self): self.log.append("drain")
    def free(self): self.log.append("free")
"""


def test_contract_of_a_function(make):
    check_backend(lambda: make(SUM), {"x": ROWS})


def test_contract_of_a_class(make):
    check_backend(lambda: make(CLASS, "model:Model"), {"x": ROWS})


def test_class_hooks_run_once_in_order(make):
    backend = make(CLASS, "model:Model")
    backend.load()
    log = backend._model.log
    backend.warm()
    np.testing.assert_array_equal(backend.infer({"x": ROWS})["y"], [2, 10, 18])
    backend.drain()
    backend.free()
    backend.free()
    assert log == ["load", "warm", "drain", "free"]


def test_two_versions_of_one_file_coexist_and_leave_nothing_behind(make):
    path, modules = list(sys.path), set(sys.modules)
    old = make("from .helper import K\n" + SUM.replace(".sum(1)", ".sum(1) * K"), version="1", helper="K = 1")
    new = make("from .helper import K\n" + SUM.replace(".sum(1)", ".sum(1) * K"), version="2", helper="K = 10")
    finders = len(sys.meta_path)
    old.load()
    new.load()
    assert old.infer({"x": ROWS})["y"].tolist() == [1, 5, 9]
    assert new.infer({"x": ROWS})["y"].tolist() == [10, 50, 90]
    assert sys.path == path
    old.free()
    new.free()
    assert set(sys.modules) - modules == set()
    assert len(sys.meta_path) == finders


def test_no_byte_code_is_written_beside_the_model(make, tmp_path):
    make(SUM).load()
    assert [p.name for p in (tmp_path / "m" / "1").iterdir()] == ["model.py"]


def test_an_edit_takes_effect_at_the_next_load(make):
    for k in (1, 2):
        backend = make(SUM.replace(".sum(1)", f".sum(1) * {k}"))
        backend.load()
        assert backend.infer({"x": ROWS})["y"].tolist() == [1 * k, 5 * k, 9 * k]
        backend.free()


@pytest.mark.parametrize(
    ("source", "entry", "says"),
    [
        ("1/0", "model:model", "ZeroDivisionError: division by zero"),
        ("model = 3", "model:model", "neither callable nor has `infer`: int"),
        ("", "model:model", "no attribute 'model'"),
        (SUM, "other:model", "no module 'other' for 'other:model'; the folder has model.py"),
        (SUM, "model", "expected \"module:attribute\", got 'model'"),
        ("import sys\nsys.exit(3)", "model:model", "SystemExit: 3"),
        ("import not_a_package_at_all", "model:model", "No module named 'not_a_package_at_all'"),
    ],
)
def test_bad_code_fails_the_load_and_leaves_nothing_behind(make, source, entry, says):
    modules = set(sys.modules)
    check_failed_load(lambda: make(source, entry), says)
    assert set(sys.modules) - modules == set()


def test_a_load_that_fails_half_way_frees_what_it_acquired(make):
    backend = make(
        "class Model:\n    log = []\n    def load(self): raise OSError('no weights')\n"
        "    def free(self): self.log.append(1)\n    def infer(self, t): return t\n",
        "model:Model",
    )
    log = []
    backend._code.load("model:Model").log = log
    with pytest.raises(LoadFailed, match="OSError: no weights") as caught:
        backend.load()
    assert isinstance(caught.value.__cause__, OSError)
    assert log == [1]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise KeyError('boom')", "KeyError: 'boom'"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("return [1]", "expected a dict of arrays, got list"),
        ("return {}", "output 'y' is missing; the code returned nothing"),
        ("return {'z': 1}", "output 'y' is missing; the code returned z"),
        ("return {'y': t['x'][:, 0][:2]}", "output 'y': expected 3 rows as in the input, got 2"),
        ("return {'y': t['x']}", "output 'y': expected shape [-1], got [3, 2]"),
        ("return {'y': t['x'][:, 0] * 1j}", "output 'y': expected FP32, got complex64"),
        ("return {'y': ['a', 'b', 'c']}", "output 'y': not an array of FP32"),
    ],
)
def test_wrong_answers_are_failed_stages_that_say_what(make, body, says):
    backend = make(f"def model(t):\n    {body}\n")
    backend.load()
    with pytest.raises(StageFailed) as caught:
        backend.infer({"x": ROWS})
    assert str(caught.value) == f"stage 'm': {says}"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("[1]", "expected a dict of arrays, got list"),
        ("{'z': t['x'][:, 0]}", "output 'y' is missing; the code returned z"),
        ("{'y': t['x'][:, 0], 'z': 1}", "unknown output 'z'; declared are y"),
        ("{'y': [0, 0]}", "output 'y': expected 1 rows as in the input, got 2"),
        ("{'y': t['x']}", "output 'y': expected shape [-1], got [1, 2]"),
        ("{'y': t['x'][:, 0] * 1j}", "output 'y': expected FP32, got complex64"),
    ],
)
def test_a_warm_up_that_breaks_the_declaration_fails_the_load(make, answer, says):
    backend = make(f"def model(t):\n    return {answer}\n")
    backend.load()
    with pytest.raises(LoadFailed) as caught:
        backend.warm()
    assert str(caught.value) == f"model 'm': on a row of zeros: {says}"


@pytest.mark.parametrize(
    "error", ["ValueError('all zero')", "InvalidInput('all zero')", "StageFailed('a', 'all zero')"]
)
def test_code_may_refuse_the_row_of_zeros(make, caplog, error):
    backend = make(f"from headrace.errors import InvalidInput, StageFailed\ndef model(t):\n    raise {error}\n")
    backend.load()
    backend.warm()
    (line,) = caplog.messages
    assert line.startswith("model 'm': warm-up input refused, the first request will be slower: ")
    assert line.endswith("all zero")


def test_lists_and_wider_floats_become_the_declared_dtype(make):
    backend = make(
        "def model(t):\n    return {'y': [1, 2, 3], 'z': t['x'][:, 0].astype('f8'), 'more': 1}\n",
        outputs=[Y, TensorConfig("z", "FP32", [-1])],
    )
    backend.load()
    answer = backend.infer({"x": ROWS})
    assert {name: array.dtype for name, array in answer.items()} == {"y": np.float32, "z": np.float32}


def test_errors_of_the_tree_pass_through(make):
    backend = make("from headrace.errors import InvalidInput\ndef model(t):\n    raise InvalidInput('too dark')\n")
    backend.load()
    with pytest.raises(InvalidInput, match=r"^too dark$"):
        backend.infer({"x": ROWS})


def test_use_before_load_is_unavailable(make):
    with pytest.raises(Unavailable, match="'m' is not loaded"):
        make(SUM).infer({"x": ROWS})


def test_declarations_are_required_and_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"\[\[inputs\]\]"):
        create(ModelConfig(backend="python", entry="a:b"), tmp_path / "1")
    with pytest.raises(ConfigError, match="'FLOAT' is not one of BOOL"):
        create(
            ModelConfig(backend="python", entry="a:b", inputs=[TensorConfig("x", "FLOAT", [1])], outputs=[Y]),
            tmp_path / "1",
        )
