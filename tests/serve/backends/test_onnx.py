import threading

import numpy as np
import pytest

from headrace.errors import ConfigError, InvalidInput, LoadFailed, StageFailed, Unavailable
from headrace.serve.backends import create
from headrace.serve.backends.onnx import OnnxBackend
from headrace.serve.backends.onnx_file import opsets
from headrace.serve.config import ModelConfig, RuntimeConfig
from headrace.testing.backend import check_backend, check_failed_load
from headrace.testing.models import save_graph, save_linear

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def linear(tmp_path):
    return save_linear(tmp_path / "m" / "1" / "model.onnx", np.arange(12).reshape(4, 3), metadata={"character": "abc"})


@pytest.fixture
def loaded():
    """Load a backend that is freed at the end of the test."""
    backends = []

    def load(path):
        backend = OnnxBackend(path)
        backends.append(backend)
        backend.load()
        return backend

    yield load
    for backend in backends:
        backend.free()


def test_contract(linear):
    check_backend(lambda: OnnxBackend(linear), {"x": ROWS})


def test_answers_and_describes_itself(linear, loaded):
    backend = loaded(linear)
    np.testing.assert_allclose(backend.infer({"x": ROWS})["y"], ROWS @ np.arange(12).reshape(4, 3))
    assert [(s.name, s.dtype, s.shape) for s in backend.inputs] == [("x", np.float32, (-1, 4))]
    assert backend.metadata == {"producer": "headrace", "graph": "model", "opset": "ai.onnx 17", "character": "abc"}


def test_no_rows_give_no_rows(linear, loaded):
    assert loaded(linear).infer({"x": ROWS[:0]})["y"].shape == (0, 3)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("BOOL", np.bool_),
        ("UINT8", np.uint8),
        ("UINT16", np.uint16),
        ("UINT32", np.uint32),
        ("UINT64", np.uint64),
        ("INT8", np.int8),
        ("INT16", np.int16),
        ("INT32", np.int32),
        ("INT64", np.int64),
        ("FLOAT16", np.float16),
        ("FLOAT", np.float32),
        ("DOUBLE", np.float64),
        ("STRING", object),
    ],
)
def test_every_dtype_passes_through(tmp_path, loaded, kind, dtype):
    path = save_graph(
        tmp_path / "m.onnx", [("Identity", ["x"], ["y"], {})], [("x", kind, ["n", 2])], [("y", kind, ["n", 2])]
    )
    backend = loaded(path)
    backend.warm()
    rows = np.array([["a", "é"], ["", "d"]], object) if dtype is object else np.array([[0, 1], [1, 0]], dtype)
    answer = backend.infer({"x": rows})["y"]
    assert backend.inputs[0].dtype == answer.dtype == dtype
    assert answer.tolist() == rows.tolist()


def test_dtype_without_numpy_name_is_refused_at_load(tmp_path):
    path = save_graph(
        tmp_path / "m.onnx", [("Identity", ["x"], ["y"], {})], [("x", "BFLOAT16", [1])], [("y", "BFLOAT16", [1])]
    )
    check_failed_load(lambda: OnnxBackend(path), "tensor 'x' is tensor(bfloat16)")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "tensor 'x' is missing; expected x FP32[-1, 4], got none"),
        ({"z": ROWS}, "tensor 'x' is missing; expected x FP32[-1, 4], got z"),
        ({"x": ROWS, "z": ROWS}, "unknown tensor 'z'; expected x FP32[-1, 4]"),
        ({"x": ROWS.astype(np.float64)}, "tensor 'x': expected FP32, got FP64"),
        ({"x": ROWS[:, :3]}, "tensor 'x': expected shape [-1, 4], got [2, 3] (axis 1 must be 4, is 3)"),
        ({"x": ROWS[0]}, "tensor 'x': expected 2 axes [-1, 4], got 1 axes [4]"),
    ],
)
def test_wrong_input_names_tensor_expected_and_got(linear, loaded, tensors, message):
    with pytest.raises(InvalidInput) as caught:
        loaded(linear).infer(tensors)
    assert str(caught.value) == message


def test_shape_trouble_inside_the_graph_is_the_callers(tmp_path, loaded):
    add = save_graph(
        tmp_path / "add.onnx",
        [("Add", ["a", "b"], ["y"], {})],
        [("a", "FLOAT", ["n", "k"]), ("b", "FLOAT", ["n", "m"])],
        [("y", "FLOAT", ["n", "o"])],
    )
    with pytest.raises(InvalidInput) as caught:
        loaded(add).infer({"a": ROWS, "b": ROWS[:, :3]})
    assert str(caught.value) == (
        "model 'add': Add node: Attempting to broadcast an axis by a dimension other than 1. 3 by 4"
    )


def test_index_out_of_range_is_the_callers(tmp_path, loaded):
    gather = save_graph(
        tmp_path / "g.onnx",
        [("Gather", ["table", "i"], ["y"], {})],
        [("i", "INT64", ["n"])],
        [("y", "FLOAT", ["n", 4])],
        {"table": ROWS},
    )
    with pytest.raises(InvalidInput, match=r"Gather node: indices element out of data bounds, idx=9"):
        loaded(gather).infer({"i": np.array([9])})


def test_a_fault_that_is_not_the_callers_is_a_failed_stage(tmp_path, loaded):
    expand = save_graph(
        tmp_path / "e.onnx",
        [("Expand", ["x", "s"], ["y"], {})],
        [("x", "FLOAT", ["n"]), ("s", "INT64", ["k"])],
        [("y", "FLOAT", None)],
    )
    with pytest.raises(StageFailed, match="Expand node: Failed to allocate memory") as caught:
        loaded(expand).infer({"x": np.ones(1, np.float32), "s": np.array([1 << 42])})
    assert "onnxruntime" not in str(caught.value)


def test_scalar_inputs_and_unstated_ranks(tmp_path, loaded):
    path = save_graph(
        tmp_path / "s.onnx",
        [("Mul", ["x", "k"], ["y"], {})],
        [("x", "FLOAT", ["n", 4]), ("k", "FLOAT", [])],
        [("y", "FLOAT", ["n", 4])],
    )
    backend = loaded(path)
    backend.warm()
    assert backend.inputs[1].shape == ()
    np.testing.assert_allclose(backend.infer({"x": ROWS, "k": np.array(2, np.float32)})["y"], ROWS * 2)


def test_warm_up_that_the_model_refuses_is_logged(tmp_path, loaded, caplog):
    path = save_graph(
        tmp_path / "r.onnx",
        [("Reshape", ["x", "s"], ["y"], {})],
        [("x", "FLOAT", ["n"])],
        [("y", "FLOAT", ["m", 2])],
        {"s": np.array([-1, 2])},
    )
    backend = loaded(path)
    backend.warm()
    assert "warm-up input refused" in caplog.text
    assert backend.infer({"x": np.ones(4, np.float32)})["y"].shape == (2, 2)


def test_bad_files_fail_the_load_and_say_why(tmp_path, linear):
    import onnx

    model = onnx.load(linear)
    cases = {
        "text": b"hello, this is not a model at all",
        "empty": b"",
        "truncated": linear.read_bytes()[:-30],
    }
    model.opset_import[0].version = 99
    cases["opset"] = model.SerializeToString()
    causes = {"text": "Protobuf parsing failed", "empty": "No graph", "truncated": "", "opset": "Opset 99"}
    for name, data in cases.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        check_failed_load(lambda path=path: OnnxBackend(path), str(path))
        check_failed_load(lambda path=path: OnnxBackend(path), causes[name])
    check_failed_load(lambda: OnnxBackend(tmp_path / "none.onnx"), "no such file")


def test_absent_external_data_fails_the_load(tmp_path, linear):
    import onnx

    path = tmp_path / "ext.onnx"
    onnx.save(onnx.load(linear), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    OnnxBackend(path).load()
    (tmp_path / "weights.bin").unlink()
    check_failed_load(lambda: OnnxBackend(path), "weights.bin")


def test_loading_twice_is_refused(linear, loaded):
    with pytest.raises(LoadFailed, match="loaded twice"):
        loaded(linear).load()


def test_free_while_calls_run_breaks_none_of_them(linear, loaded):
    backend = loaded(linear)
    started, unexpected = threading.Event(), []

    def work():
        try:
            while True:
                backend.infer({"x": ROWS})
                started.set()
        except Unavailable:
            pass
        except Exception as error:
            unexpected.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    backend.free()
    for thread in threads:
        thread.join(10)
    assert unexpected == []


def test_opsets_of_hostile_bytes_are_empty(tmp_path):
    path = tmp_path / "x"
    for data in (b"", b"\xff" * 40, b"\x42\xff\x01", b"\x42\x04\x0a\x09ab"):
        path.write_bytes(data)
        assert opsets(path) in ({}, {"ai.onnx": 0})


def test_factory_finds_the_only_model_file(linear):
    backend = create(ModelConfig(backend="onnx", runtime=RuntimeConfig(threads=2)), linear.parent)
    assert (backend.name, backend.file) == ("m", linear)


@pytest.mark.parametrize("file", ["/etc/passwd", "../other/model.onnx"])
def test_factory_keeps_to_the_version_folder(linear, file):
    with pytest.raises(ConfigError, match="inside the version folder"):
        create(ModelConfig(backend="onnx", file=file), linear.parent)


def test_factory_asks_which_of_several_files(linear):
    (linear.parent / "second.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"found model\.onnx, second\.onnx"):
        create(ModelConfig(backend="onnx"), linear.parent)
