"""A model written in plain Python: "module:attribute" from the version folder in, a `Backend` out.

The attribute is a callable `tensors -> tensors`, or a class made once with no arguments whose optional `load`, `warm`,
`drain` and `free` follow the backend life cycle and whose `infer` (or `__call__`) runs the model.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ConfigError, HeadraceError, LoadFailed, StageFailed, Unavailable
from headrace.serve.protocol import Array, Tensors, TensorSpec
from headrace.serve.tensors import check_tensors, datatype, example
from headrace.serve.usercode import UserCode

__all__ = ["PythonBackend"]

_log = logging.getLogger(__name__)


class PythonBackend:
    """User code as a backend.

    Args:
        directory: Version folder that holds the module.
        entry: "module:attribute".
        inputs, outputs: Declared in `headrace.toml`, as code cannot describe itself.
        name: Model name, for messages.

    `thread_safe` is what the user's object declares, default False: one call at a time.
    """

    def __init__(
        self,
        directory: Path,
        entry: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        name: str = "",
    ) -> None:
        self.name = name or directory.name
        self.inputs = inputs
        self.outputs = outputs
        self.thread_safe = False
        self._entry = entry
        self._code = UserCode(directory)
        self._model: Any = None
        self._infer: Callable[[Tensors], Any] | None = None

    def load(self) -> None:
        if self._infer is not None:
            raise LoadFailed(f"model {self.name!r}: loaded twice")
        try:
            attribute = self._code.load(self._entry)
            self._model = attribute() if inspect.isclass(attribute) else attribute
            infer = getattr(self._model, "infer", self._model)
            if not callable(infer):
                raise ConfigError(f"{self._entry!r} is neither callable nor has `infer`: {type(infer).__name__}")
            self._hook("load")
        except (Exception, SystemExit) as error:
            self.free()
            if isinstance(error, LoadFailed):
                raise
            what = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
            raise LoadFailed(f"model {self.name!r}: {what}") from error
        self.thread_safe = bool(getattr(self._model, "thread_safe", False))
        self._infer = infer

    def warm(self) -> None:
        """Call the user's `warm` (its error fails the load). Without one, run a row of zeros: the code may refuse it,
        which is logged, but an answer that is not what `headrace.toml` declares fails the load."""
        if not hasattr(self._model, "warm"):
            self._warm(example(self.inputs))
            return
        try:
            self._hook("warm")
        except (Exception, SystemExit) as error:
            raise LoadFailed(f"model {self.name!r}: warm: {type(error).__name__}: {error}") from error

    def infer(self, tensors: Tensors, /) -> Tensors:
        answer = self._run(tensors)
        try:
            return self._declared(answer, tensors)
        except _NotAsDeclared as error:
            raise StageFailed(self.name, str(error)) from error.__cause__

    def drain(self) -> None:
        self._hook("drain")

    def free(self) -> None:
        """Call the user's `free` once (its errors are logged), then forget the code."""
        model, self._infer = self._model, None
        try:
            self._hook("free")
        except (Exception, SystemExit):
            _log.exception("model %r: free", self.name)
        del model
        self._model = None
        self._code.close()

    def _hook(self, name: str) -> None:
        hook = getattr(self._model, name, None)
        if hook is not None and not inspect.isfunction(self._model):
            hook()

    def _warm(self, row: Tensors) -> None:
        try:
            answer = self._run(row)
        except HeadraceError as error:
            _log.warning("model %r: warm-up input refused, the first request will be slower: %s", self.name, error)
            return
        try:
            self._declared(answer, row)
        except _NotAsDeclared as error:
            raise LoadFailed(f"model {self.name!r}: on a row of zeros: {error}") from error.__cause__
        if unknown := [name for name in answer if name not in {spec.name for spec in self.outputs}]:
            declared = ", ".join(spec.name for spec in self.outputs)
            names = ", ".join(map(repr, unknown))
            raise LoadFailed(f"model {self.name!r}: on a row of zeros: unknown output {names}; declared are {declared}")

    def _run(self, tensors: Tensors) -> Any:
        infer = self._infer
        if infer is None:
            raise Unavailable(f"model {self.name!r} is not loaded")
        check_tensors(self.inputs, tensors)
        try:
            return infer(tensors)
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:
            raise StageFailed(self.name, f"{type(error).__name__}: {error}") from error

    def _declared(self, answer: Any, tensors: Tensors) -> Tensors:
        """The declared outputs of what the code returned; others are dropped."""
        if not isinstance(answer, Mapping):
            raise _NotAsDeclared(f"expected a dict of arrays, got {type(answer).__name__}")
        rows = next((len(tensors[spec.name]) for spec in self.inputs if spec.shape[:1] == (-1,)), None)
        return {spec.name: _output(spec, answer, rows) for spec in self.outputs}


class _NotAsDeclared(Exception):
    """The code's answer breaks the declaration in `headrace.toml`; says where."""


def _output(spec: TensorSpec, answer: Mapping[str, Any], rows: int | None) -> Array:
    if spec.name not in answer:
        have = ", ".join(map(str, answer)) or "nothing"
        raise _NotAsDeclared(f"output {spec.name!r} is missing; the code returned {have}")
    value = answer[spec.name]
    try:
        array: Array = np.asarray(value, None if isinstance(value, np.ndarray) else spec.dtype)
    except (TypeError, ValueError) as error:
        raise _NotAsDeclared(f"output {spec.name!r}: not an array of {datatype(spec.dtype)}") from error
    if array.dtype != spec.dtype:
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            want, got = datatype(spec.dtype), datatype(array.dtype)
            raise _NotAsDeclared(f"output {spec.name!r}: expected {want}, got {got}")
        array = array.astype(spec.dtype)
    shape = spec.shape
    fits = not shape or (
        array.ndim == len(shape) and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
    )
    if not fits:
        raise _NotAsDeclared(f"output {spec.name!r}: expected shape {list(shape)}, got {list(array.shape)}")
    if rows is not None and shape[:1] == (-1,) and len(array) != rows:
        raise _NotAsDeclared(f"output {spec.name!r}: expected {rows} rows as in the input, got {len(array)}")
    return array
