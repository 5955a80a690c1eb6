"""The tiny ONNX models of the benchmarks.

Above all the one that every server in the comparison serves: a 16 -> 64 -> 4 MLP with ReLU, weights from a fixed seed.
`expected(x)` is its answer in float64, by which each server is judged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.testing.models import save_graph

__all__ = ["HIDDEN", "INPUTS", "OUTPUTS", "expected", "write_affine", "write_binary_models", "write_mlp"]

INPUTS, HIDDEN, OUTPUTS = 16, 64, 4


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
    nodes = [
        ("Gemm", ["x", "w1", "b1"], ["h"], {}),
        ("Relu", ["h"], ["r"], {}),
        ("Gemm", ["r", "w2", "b2"], ["y"], {}),
    ]
    weights = dict(zip(("w1", "b1", "w2", "b2"), _weights(), strict=True))
    save_graph(path, nodes, [_rows("x", INPUTS)], [_rows("y", OUTPUTS)], weights)


def write_binary_models(root: Path, columns: int) -> tuple[Path, Path]:
    """Write `sum.onnx` ([n, columns] -> [n, 1]) and `echo.onnx` ([n, columns] -> the same) below `root`."""
    x = _rows("x", columns)
    total = [("ReduceSum", ["x", "axes"], ["y"], {})]
    echo = [("Identity", ["x"], ["y"], {})]
    return (
        save_graph(root / "sum.onnx", total, [x], [_rows("y", 1)], {"axes": np.array([1])}),
        save_graph(root / "echo.onnx", echo, [x], [_rows("y", columns)]),
    )


def write_affine(path: Path, columns: int) -> None:
    """Write y = 2 x + 1 over [batch, columns] float32: exact for whole numbers below 2**23."""
    nodes = [("Mul", ["x", "two"], ["d"], {}), ("Add", ["d", "one"], ["y"], {})]
    constants = {"two": np.float32(2), "one": np.float32(1)}
    save_graph(path, nodes, [_rows("x", columns)], [_rows("y", columns)], constants)


def _rows(name: str, columns: int) -> tuple[str, str, list[int | str]]:
    return name, "FLOAT", ["batch", columns]
