"""ONNX Runtime on the CPU: an `.onnx` file in, a `Backend` out."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.core.extras import require
from headrace.errors import HeadraceError, InvalidInput, LoadFailed, StageFailed, Unavailable
from headrace.serve.backends.onnx_file import opsets
from headrace.serve.protocol import Array, Tensors, TensorSpec
from headrace.serve.tensors import check_tensors, example

__all__ = ["OnnxBackend"]

_log = logging.getLogger(__name__)

_DTYPES: Final = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float16,
    "float": np.float32,
    "double": np.float64,
    "string": np.object_,
}


class OnnxBackend:
    """One ONNX Runtime session; `infer` may run in several threads at once.

    Args:
        file: The `.onnx` file; external data lies beside it.
        name: Model name, for messages.
        threads: Threads inside one call (intra-op). They never spin, so idle models cost no CPU.

    Attributes:
        metadata: producer, graph name, description, opsets and the file's custom metadata (such as `character` lists).
    """

    thread_safe = True
    steady = True

    def __init__(self, file: Path, name: str = "", threads: int = 1) -> None:
        self.file = file
        self.name = name or file.stem
        self.inputs: tuple[TensorSpec, ...] = ()
        self.outputs: tuple[TensorSpec, ...] = ()
        self.metadata: dict[str, str] = {}
        self._threads = threads
        self._names: list[str] = []
        self._strings: list[str] = []
        self._run: Any = None

    def load(self) -> None:
        if self._run is not None:
            raise LoadFailed(f"model {self.name!r}: loaded twice")
        if not self.file.is_file():
            raise LoadFailed(f"model {self.name!r}: {self.file}: no such file")
        ort = require("onnxruntime", "onnx")
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = True
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise LoadFailed(f"model {self.name!r}: {self.file}: {_clean(error)}") from error
        self.inputs = tuple(self._spec(node) for node in session.get_inputs())
        self.outputs = tuple(self._spec(node) for node in session.get_outputs())
        self.metadata = _metadata(session.get_modelmeta(), self.file)
        self._names = [spec.name for spec in self.outputs]
        self._strings = [spec.name for spec in self.inputs if spec.dtype == np.object_]
        self._run = session.run

    def warm(self) -> None:
        """Run one zero row. A model that refuses it (an index out of range, say) is logged, not failed."""
        try:
            self.infer(example(self.inputs))
        except (InvalidInput, StageFailed) as error:
            _log.warning("model %r: warm-up input refused, the first request will be slower: %s", self.name, error)

    def infer(self, tensors: Tensors, /) -> Tensors:
        names = self._names
        if self._strings:
            tensors = {**tensors, **{name: _text(name, tensors[name]) for name in self._strings if name in tensors}}
        try:
            return dict(zip(names, self._run(names, tensors), strict=True))
        except Exception as error:
            raise self._error(error, tensors) from error

    def drain(self) -> None:
        """Nothing to wait for: callers hold the session while they run."""

    def free(self) -> None:
        """Drop the session; its memory goes when the last running call returns."""
        self._run = None
        self._names = []

    def _spec(self, node: Any) -> TensorSpec:
        kind = re.fullmatch(r"tensor\((\w+)\)", node.type)
        if kind is None or kind[1] not in _DTYPES:
            raise LoadFailed(
                f"model {self.name!r}: {self.file}: tensor {node.name!r} is {node.type}; "
                f"supported are tensors of {', '.join(_DTYPES)}"
            )
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape or ())
        return TensorSpec(node.name, np.dtype(_DTYPES[kind[1]]), shape)

    def _error(self, error: Exception, tensors: Tensors) -> HeadraceError:
        """Name the fault of a failed call: only now are the inputs checked one by one, so a good call pays nothing."""
        if self._run is None:
            return Unavailable(f"model {self.name!r} is not loaded")
        try:
            check_tensors(self.inputs, tensors)
        except InvalidInput as refused:
            return refused
        message = _clean(error)
        if type(error).__name__ == "InvalidArgument" or _SHAPE_TROUBLE.search(message):
            return InvalidInput(f"model {self.name!r}: {message}")
        return StageFailed(self.name, message)


def _text(name: str, array: Array) -> Array:
    """Elements as `str`: ONNX Runtime would take the `repr` of bytes. Raises `InvalidInput` for bytes beside UTF-8."""
    text = np.empty(array.shape, np.object_)
    try:
        text.ravel()[:] = [item.decode() if isinstance(item, bytes) else item for item in array.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"tensor {name!r}: ONNX strings are UTF-8, got {error.object[:20]!r}") from None
    return text


_SHAPE_TROUBLE: Final = re.compile(r"shape|dimension|broadcast|\brank\b|axis|out of (data )?bounds", re.I)


def _clean(error: Exception) -> str:
    """ONNX Runtime's message without its code, source path and C++ signature.

    >>> _clean(Exception("[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:Protobuf parsing failed."))
    'Protobuf parsing failed.'
    """
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .*? failed:", "", text)
    node = re.match(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' Status Message: ", text)
    if node:
        text = text[node.end() :]
    if re.match(r"\S+\.(?:h|cc|cpp):\d+ ", text):
        text = text.split(" ", 1)[1]
        text = re.sub(r"^.* was false\. ", "", text)
        text = re.sub(r"^[^()]*::[^()]*\(.*?\)(?: \[.*?\])? (?=[A-Z])", "", text)
        text = re.sub(r"^[A-Z]\w*[a-z][A-Z]\w* (?=[A-Z])", "", text)
    if node:
        where = f"{node[1]} node {node[2]!r}" if node[2] else f"{node[1]} node"
        text = f"{where}: {text}"
    return text or type(error).__name__


def _metadata(meta: Any, file: Path) -> dict[str, str]:
    known = {
        "producer": meta.producer_name,
        "graph": meta.graph_name,
        "domain": meta.domain,
        "description": meta.description,
        "opset": ", ".join(f"{domain} {version}" for domain, version in opsets(file).items()),
    }
    return {key: value for key, value in known.items() if value} | dict(meta.custom_metadata_map)
