"""The tiny ONNX models of the benchmarks.

Above all the one that every server in the comparison serves: a 16 -> 64 -> 4 MLP with ReLU, weights from a fixed seed.
`expected(x)` is its answer in float64, by which each server is judged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["HIDDEN", "INPUTS", "OUTPUTS", "expected", "write_affine", "write_binary_models", "write_mlp"]

INPUTS, HIDDEN, OUTPUTS = 16, 64, 4
OPSET = 17
IR_VERSION = 9


def _weights() -> tuple[npt.NDArray[np.float32], ...]:
    rng = np.random.default_rng(20)
    w1 = rng.normal(0, INPUTS**-0.5, (INPUTS, HIDDEN)).astype(np.float32)
    w2 = rng.normal(0, HIDDEN**-0.5, (HIDDEN, OUTPUTS)).astype(np.float32)
    b1, b2 = (rng.normal(0, 0.1, n).astype(np.float32) for n in (HIDDEN, OUTPUTS))
    return w1, b1, w2, b2


def expected(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """relu(x w1 + b1) w2 + b2 for x of shape [n, 16]; returns [n, 4] in float64."""
    w1, b1, w2, b2 = (w.astype(np.float64) for w in _weights())
    hidden = np.maximum(np.asarray(x, np.float64) @ w1 + b1, 0)
    return np.asarray(hidden @ w2 + b2)


def write_mlp(path: Path) -> None:
    """Write the MLP: input x [batch, 16] float32, output y [batch, 4] float32."""
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    names = ("w1", "b1", "w2", "b2")
    initializers = [numpy_helper.from_array(w, name) for w, name in zip(_weights(), names, strict=True)]
    _save(path, nodes, ["batch", INPUTS], ["batch", OUTPUTS], initializers)


def write_binary_models(root: Path, columns: int) -> tuple[Path, Path]:
    """Write `sum.onnx` ([n, columns] -> [n, 1]) and `echo.onnx` ([n, columns] -> the same) below `root`."""
    from onnx import helper

    total, echo = root / "sum.onnx", root / "echo.onnx"
    _save(total, [helper.make_node("ReduceSum", ["x"], ["y"], noop_with_empty_axes=0)], ["batch", columns], None, [])
    _save(echo, [helper.make_node("Identity", ["x"], ["y"])], ["batch", columns], ["batch", columns], [])
    return total, echo


def write_affine(path: Path, columns: int) -> None:
    """Write y = 2 x + 1 over [batch, columns] float32: exact for whole numbers below 2**23."""
    from onnx import helper, numpy_helper

    nodes = [helper.make_node("Mul", ["x", "two"], ["d"]), helper.make_node("Add", ["d", "one"], ["y"])]
    constants = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("two", 2), ("one", 1))]
    _save(path, nodes, ["batch", columns], ["batch", columns], constants)


def _save(path: Path, nodes: list, shape_in: list, shape_out: list | None, initializers: list) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    if shape_out is None:  # reduce over axis 1 only, so that the batch axis stays
        axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
        nodes[0].input.append("axes")
        initializers, shape_out = [*initializers, axes], ["batch", 1]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape_in)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape_out)],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
