"""Tiny real models for tests and first steps: weights in, an `.onnx` file on disk out. Needs the `onnx` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require

__all__ = ["save_graph", "save_linear"]

Spec = tuple[str, str, Sequence[int | str | None] | None]
"""Tensor name, ONNX element type ("FLOAT"), shape (a string or None marks a dynamic axis; None: no shape stated)."""


def save_graph(
    path: Path,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    constants: Mapping[str, npt.NDArray[Any]] | None = None,
    *,
    opset: int = 17,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write one ONNX graph of `nodes` (op type, inputs, outputs, attributes) and return its path."""
    onnx = require("onnx", "test")
    helper = onnx.helper

    def info(spec: Spec) -> Any:
        name, kind, shape = spec
        return helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)

    graph = helper.make_graph(
        [helper.make_node(kind, ins, outs, **attributes) for kind, ins, outs, attributes in nodes],
        path.stem,
        [info(spec) for spec in inputs],
        [info(spec) for spec in outputs],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="headrace")
    model.ir_version = 8
    helper.set_model_props(model, dict(metadata or {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def save_linear(
    path: Path,
    weights: npt.ArrayLike,
    *,
    inputs: str = "x",
    outputs: str = "y",
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write the model `y = x @ weights`, FP32, any number of rows; `weights` is (in, out)."""
    matrix = np.asarray(weights, np.float32)
    return save_graph(
        path,
        [("MatMul", [inputs, "weights"], [outputs], {})],
        [(inputs, "FLOAT", ["rows", matrix.shape[0]])],
        [(outputs, "FLOAT", ["rows", matrix.shape[1]])],
        {"weights": matrix},
        metadata=metadata,
    )
