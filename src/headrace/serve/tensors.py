"""What everything that handles named arrays shares: specs and arrays in, nothing or a clear error out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.errors import ConfigError, InvalidInput
from headrace.serve.config import TensorConfig
from headrace.serve.protocol import Tensors, TensorSpec

__all__ = ["DTYPES", "check_tensors", "datatype", "example", "specs_from_config"]

DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype(np.uint16),
        "UINT32": np.dtype(np.uint32),
        "UINT64": np.dtype(np.uint64),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype(np.int16),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "FP16": np.dtype(np.float16),
        "FP32": np.dtype(np.float32),
        "FP64": np.dtype(np.float64),
        "BYTES": np.dtype(object),
    }
)
"""Open Inference Protocol datatype -> NumPy dtype; BYTES (strings) are object arrays."""

_NAMES: Final[Mapping[np.dtype[Any], str]] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})


def datatype(dtype: np.dtype[Any]) -> str:
    """The Open Inference Protocol name of a dtype ("FP32"), or NumPy's own name where the protocol has none."""
    return _NAMES.get(dtype) or dtype.name


def specs_from_config(tensors: Iterable[TensorConfig]) -> tuple[TensorSpec, ...]:
    """Specs of tensors declared in `headrace.toml`. Raises `ConfigError` naming the tensor and the known datatypes."""
    specs = []
    for tensor in tensors:
        if tensor.datatype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ConfigError(f"tensor {tensor.name!r}: datatype {tensor.datatype!r} is not one of {known}")
        if any(dim < -1 for dim in tensor.shape):
            raise ConfigError(f"tensor {tensor.name!r}: shape {tensor.shape} has an axis below -1")
        specs.append(TensorSpec(tensor.name, DTYPES[tensor.datatype], tuple(tensor.shape)))
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ConfigError(f"tensor names must differ, got {names}")
    return tuple(specs)


def example(specs: Sequence[TensorSpec]) -> Tensors:
    """Zeros (empty strings) of the declared shapes, dynamic axes set to 1: one row to warm a model with."""
    return {
        spec.name: np.full(
            [max(dim, 1) if dim else 0 for dim in spec.shape], "" if spec.dtype == object else 0, spec.dtype
        )
        for spec in specs
    }


def check_tensors(specs: Sequence[TensorSpec], tensors: Tensors) -> None:
    """Raise `InvalidInput` unless `tensors` are exactly the arrays that `specs` declare.

    Names, dtypes, ranks and fixed axes must match. A spec of shape () is a scalar or a tensor whose rank the model does
    not state, so its shape is not judged. The message names the tensor, what was expected and what came.
    """
    if len(tensors) != len(specs) or not all(_plainly_right(spec, tensors.get(spec.name)) for spec in specs):
        _check_each(specs, tensors)


def _plainly_right(spec: TensorSpec, array: Any) -> bool:
    """The usual case, decided fast: the very dtype, and only the batch axis left open."""
    if type(array) is not np.ndarray or array.dtype is not spec.dtype:
        return False
    shape = array.shape
    return bool(shape and spec.shape) and shape[1:] == spec.shape[1:] and spec.shape[0] in (-1, shape[0])


def _check_each(specs: Sequence[TensorSpec], tensors: Tensors) -> None:
    for spec in specs:
        array = tensors.get(spec.name)
        if array is None:
            raise InvalidInput(f"tensor {spec.name!r} is missing; expected {_wants(specs)}, got {_names(tensors)}")
        if not isinstance(array, np.ndarray):
            raise InvalidInput(f"tensor {spec.name!r}: expected an array, got {type(array).__name__}")
        if array.dtype != spec.dtype:
            got = datatype(array.dtype) if array.dtype.isnative else f"byte-swapped {array.dtype.name}"
            raise InvalidInput(f"tensor {spec.name!r}: expected {datatype(spec.dtype)}, got {got}")
        shape = spec.shape
        if shape and array.shape != shape:
            if len(array.shape) != len(shape):
                raise InvalidInput(
                    f"tensor {spec.name!r}: expected {len(shape)} axes {_shape(shape)}, "
                    f"got {array.ndim} axes {_shape(array.shape)}"
                )
            for axis, (want, got_dim) in enumerate(zip(shape, array.shape, strict=True)):
                if want not in (-1, got_dim):
                    raise InvalidInput(
                        f"tensor {spec.name!r}: expected shape {_shape(shape)}, got {_shape(array.shape)} "
                        f"(axis {axis} must be {want}, is {got_dim})"
                    )
    if len(tensors) > len(specs):
        extra = sorted(set(tensors) - {spec.name for spec in specs})
        raise InvalidInput(f"unknown tensor {', '.join(map(repr, extra))}; expected {_wants(specs)}")


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _wants(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {datatype(spec.dtype)}{_shape(spec.shape)}" for spec in specs) or "no tensors"


def _names(tensors: Tensors) -> str:
    return ", ".join(sorted(tensors)) or "none"
