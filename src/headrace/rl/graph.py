"""Policies as ONNX graphs, piece by piece: constants and nodes in, a checked model out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.rl.normalise import Normaliser

__all__ = ["OPSET", "Graph"]

OPSET = 17


class Graph:
    """One graph from raw observations, float32[batch, obs_size]; `seen` names them normalised."""

    def __init__(self, obs_size: int, normaliser: Normaliser) -> None:
        self._onnx: Any = require("onnx", "rl")
        self._constants: list[Any] = []
        self._nodes: list[Any] = []
        self._obs_size = obs_size
        centred = self.node("Sub", ["observation", self.constant("mean", normaliser.mean)], "centred")
        self.seen = self.node("Mul", [centred, self.constant("scale", normaliser.scale)], "scaled")
        if np.isfinite(normaliser.limit):
            limits = [
                self.constant(name, np.float32(sign * normaliser.limit)) for name, sign in (("low", -1), ("high", 1))
            ]
            self.seen = self.node("Clip", [self.seen, *limits], "seen")

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add an operator; returns `output`, the name of what it gives."""
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def linear(self, x: str, name: str, weight: npt.NDArray[Any], bias: npt.NDArray[Any], output: str = "") -> str:
        """x @ weight.T + bias."""
        parts = [self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)]
        return self.node("Gemm", [x, *parts], output or name, transB=1)

    def model(self, name: str, outputs: dict[str, tuple[npt.DTypeLike, list[str | int]]]) -> bytes:
        """The whole of it; `outputs`: dtype and shape by name."""
        helper, kind = self._onnx.helper, self._onnx.helper.np_dtype_to_tensor_dtype
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            name,
            [info("observation", kind(np.dtype(np.float32)), ["batch", self._obs_size])],
            [info(output, kind(np.dtype(dtype)), shape) for output, (dtype, shape) in outputs.items()],
            self._constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        self._onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString()
        return content
