"""Tensors of 4- and 8-bit integers in as few bytes: numbers or bytes in, zero-copy views of them out.

Values lie in row-major order; with 4 bits an even one is the low half of its byte, the next one the high half, across
rows too (as ONNX and PyTorch pack them). A view knows where its values are by an offset and strides counted in values,
so every slice, step and transposition of a tensor shares its bytes, even from the middle of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType, NoneType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput

__all__ = ["PackedTensor"]

Kind: TypeAlias = Literal["int4", "uint4", "int8", "uint8"]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_RANGES: dict[str, tuple[int, int]] = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255)}


class PackedTensor:
    """An n-dimensional view of packed integers.

    Attributes:
        kind: "int4", "uint4", "int8" or "uint8".
        raw: uint8[bytes], what the view was made over; shared, never copied.
    """

    __slots__ = ("_offset", "_places", "kind", "raw")

    def __init__(self, buffer: Any, kind: Kind, shape: Sequence[int], offset: int = 0) -> None:
        """View `buffer` (bytes, mmap, memoryview, a contiguous array; anything with the buffer protocol).

        Args:
            buffer: Where the values are. It must outlive no one: the view keeps it.
            kind: How they are packed.
            shape: Whole numbers; their product is the number of values.
            offset: Bytes to skip.

        Raises `InvalidInput` for a shape that needs more bytes than there are.
        """
        if kind not in _RANGES:
            raise InvalidInput(f"kind: expected one of {', '.join(_RANGES)}; got {kind!r}")
        raw = _as_bytes(buffer)
        dims = tuple(int(dim) for dim in shape)
        needed = _bytes_of(math.prod(dims), kind)
        if any(dim < 0 for dim in dims) or offset < 0 or offset + needed > raw.size:
            raise InvalidInput(
                f"{kind} values of the shape {list(dims)} take {needed} bytes from {offset} on; got {raw.size}"
            )
        self.kind, self.raw = kind, raw
        # A map without a territory: shape and strides of the view, in values. Its memory is never read; slicing it
        # as an array gives the offset and strides of the slice by NumPy's own rules.
        self._places: npt.NDArray[np.uint8] = np.lib.stride_tricks.as_strided(
            np.empty(1, np.uint8), dims, _strides(dims), writeable=False
        )
        self._offset = offset * _per_byte(kind)

    @classmethod
    def pack(cls, values: npt.ArrayLike, kind: Kind) -> PackedTensor:
        """Pack whole numbers into bytes of its own; raises `InvalidInput` for one outside the kind's range."""
        array = _checked(values, kind)
        tensor = cls(np.zeros(_bytes_of(array.size, kind), np.uint8), kind, array.shape)
        if kind.endswith("8"):
            tensor.raw[:] = array.astype(kind, copy=False).ravel().view(np.uint8)
        else:
            codes = array.ravel().astype(np.uint8) & np.uint8(15)
            tensor.raw[:] = codes[::2]
            tensor.raw[: array.size // 2] |= codes[1::2] << np.uint8(4)
        return tensor

    @classmethod
    def from_dlpack(cls, source: Any, kind: Kind, shape: Sequence[int]) -> PackedTensor:
        """View the bytes of any DLPack tensor on the CPU (NumPy, PyTorch, JAX …) as packed values, without a copy."""
        return cls(np.from_dlpack(source), kind, shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._places.shape

    @property
    def ndim(self) -> int:
        return self._places.ndim

    @property
    def size(self) -> int:
        """How many values."""
        return self._places.size

    @property
    def nbytes(self) -> int:
        """Bytes that many values take when they are packed."""
        return _bytes_of(self.size, self.kind)

    @property
    def is_contiguous(self) -> bool:
        """Whether the values are one run in row-major order that begins with a byte."""
        return bool(self._places.flags.c_contiguous) and self._offset % _per_byte(self.kind) == 0

    @property
    def T(self) -> PackedTensor:  # noqa: N802 - NumPy's name
        """The same values with the dimensions in reverse."""
        return self._view(self._places.T, self._offset)

    def packed(self) -> Bytes:
        """uint8[nbytes] of these values alone: a view where they are contiguous, else packed anew."""
        if not self.is_contiguous:
            return PackedTensor.pack(self.unpack(), self.kind).raw
        first = self._offset // _per_byte(self.kind)
        return self.raw[first : first + self.nbytes]

    def unpack(self) -> npt.NDArray[Any]:
        """The values as int8 or uint8, in the view's shape: of 8 bits and contiguous a view, else a copy."""
        if not self.is_contiguous:
            return self._get(self._indices())
        data = self.packed()
        if self.kind.endswith("4"):
            codes = np.empty((len(data), 2), np.uint8)
            np.bitwise_and(data, 15, out=codes[:, 0])
            np.right_shift(data, 4, out=codes[:, 1])
            data = codes.ravel()[: self.size]
        return _valued(data, self.kind).reshape(self.shape)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, key: Any) -> Any:
        """An int for one element, a view for slices, a NumPy array for indices or masks; as NumPy indexes."""
        if not _is_basic(key):
            return self._get(self._indices()[key])
        places = self._places[_as_view(key)]
        if places.ndim:
            return self._view(places, self._offset + _address(places) - _address(self._places))
        return int(self._get(self._indices(places)))

    def __setitem__(self, key: Any, values: npt.ArrayLike) -> None:
        """Write values, broadcast as NumPy does. Raises `InvalidInput` out of range or if the bytes are read-only."""
        if not self.raw.flags.writeable:
            raise InvalidInput("these bytes are read-only; pack a copy to change it")
        indices = self._indices(self._places[_as_view(key)]) if _is_basic(key) else np.asarray(self._indices()[key])
        array = _checked(values, self.kind)
        try:
            codes = np.broadcast_to(array, indices.shape).astype(np.int64).astype(np.uint8)
        except ValueError as error:
            raise InvalidInput(f"values of the shape {list(array.shape)} do not fit {list(indices.shape)}") from error
        if self.kind.endswith("8"):
            self.raw[indices] = codes
            return
        for half in (0, 1):  # one after the other, for two values of one byte
            here = indices % 2 == half
            at = indices[here] // 2
            kept = self.raw[at] & np.uint8(15 << 4 * (1 - half))
            self.raw[at] = kept | (codes[here] & np.uint8(15)) << np.uint8(4 * half)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = self.unpack()
        shared = np.shares_memory(values, self.raw)
        if copy is False and not (shared and dtype in (None, values.dtype)):
            raise ValueError(f"{self.kind} values cannot become an array without a copy")
        return np.array(values, dtype=dtype, copy=True) if copy or dtype else values

    def __dlpack__(self, **options: Any) -> Any:
        """8-bit values as they are; 4-bit ones as uint8[nbytes], packed, since DLPack's users take no half bytes.

        Raises `BufferError` if the values are not contiguous: pack them first.
        """
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self._exported().__dlpack_device__()

    def __repr__(self) -> str:
        return f"PackedTensor({self.kind}, shape={self.shape})"

    def _exported(self) -> npt.NDArray[Any]:
        if not self.is_contiguous:
            raise BufferError("only contiguous values can be exported")
        return self.unpack() if self.kind.endswith("8") else self.packed()

    def _view(self, places: npt.NDArray[np.uint8], offset: int) -> PackedTensor:
        tensor = PackedTensor.__new__(PackedTensor)
        tensor.kind, tensor.raw, tensor._places, tensor._offset = self.kind, self.raw, places, offset
        return tensor

    def _indices(self, places: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.int64]:
        """For each value where it is, counted in values from the start of `raw`."""
        places = self._places if places is None else places
        indices = np.full(places.shape, self._offset + _address(places) - _address(self._places), np.int64)
        for axis, (length, stride) in enumerate(zip(places.shape, places.strides, strict=True)):
            indices += (np.arange(length) * stride).reshape(-1, *(1,) * (places.ndim - axis - 1))
        return indices

    def _get(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if self.kind.endswith("8"):
            return _valued(self.raw[indices], self.kind)
        return _valued(self.raw[indices // 2] >> (indices % 2 * 4).astype(np.uint8) & np.uint8(15), self.kind)


def _per_byte(kind: str) -> int:
    return 2 if kind.endswith("4") else 1


def _bytes_of(count: int, kind: str) -> int:
    return -(-count // _per_byte(kind))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a row-major tensor, in values."""
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.insert(0, strides[0] * dim)
    return tuple(strides[: len(shape)])


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _as_bytes(buffer: Any) -> Bytes:
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise InvalidInput("buffer: expected contiguous bytes")
        return buffer.reshape(-1).view(np.uint8)
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise InvalidInput(f"buffer: expected bytes or what has a buffer, got {type(buffer).__name__}") from error
    if not view.c_contiguous:
        raise InvalidInput("buffer: expected contiguous bytes")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _checked(values: npt.ArrayLike, kind: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    low, high = _RANGES[kind]
    if array.size and (array.dtype.kind not in "iu" or array.min() < low or array.max() > high):
        raise InvalidInput(
            f"expected whole numbers from {low} to {high} for {kind}, got {array.dtype} {_extent(array)}"
        )
    return array


def _extent(array: npt.NDArray[Any]) -> str:
    return f"from {array.min()} to {array.max()}" if array.dtype.kind in "iuf" else "values"


def _valued(codes: Bytes, kind: str) -> npt.NDArray[Any]:
    if kind.startswith("uint"):
        return codes
    numbers = codes.view(np.int8)
    return numbers if kind == "int8" else (numbers ^ np.int8(8)) - np.int8(8)


def _is_basic(key: Any) -> bool:
    """Whether NumPy answers it with a view."""
    parts = key if isinstance(key, tuple) else (key,)
    kinds = (int, np.integer, slice, EllipsisType, NoneType)
    return all(isinstance(part, kinds) and not isinstance(part, bool) for part in parts)


def _as_view(key: Any) -> tuple[Any, ...]:
    """The key with an ellipsis: then one element too comes as an array, and its place is not read."""
    parts = key if isinstance(key, tuple) else (key,)
    return parts if any(part is Ellipsis for part in parts) else (*parts, ...)
