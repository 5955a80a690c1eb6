"""What a GGUF file says of itself: a position in its bytes in, values by key out. Trusts nothing it reads.

Every count and length is checked against what is left of the file and against a limit before it is used. Arrays are
only walked at first and decoded when they are asked for: a vocabulary of 262,144 texts is no work until it is wanted.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.formats.texts import Texts

__all__ = ["Cursor", "Metadata"]

MAX_KEY_BYTES = (1 << 16) - 1
MAX_TEXT_BYTES = 1 << 26
MAX_ARRAY_BYTES = 1 << 28
MAX_TEXTS = 1 << 23
"""Texts in all arrays of a file together."""

_U64 = struct.Struct("<Q")
_SCALARS = {
    number: struct.Struct(f"<{code}")
    for number, code in {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}.items()
}
_BOOL, _TEXT, _ARRAY = 7, 8, 9


class Metadata(Mapping[str, Any]):
    """Values by key: int, float, bool, str, `Texts` (a sequence of str), or a NumPy array of numbers or bools.

    An array is decoded on first use; one with a text that is not UTF-8 raises `LoadFailed` then.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if callable(value):
            value = self._values[key] = value()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Cursor:
    """Reads forward through the bytes of one file; raises `LoadFailed` naming the file, the byte, what it expected."""

    def __init__(self, path: str, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0
        self._texts_left = MAX_TEXTS

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Raise `LoadFailed` for the byte `at`, by default the current one."""
        raise LoadFailed(f"{self.path}: at byte {self.at if at is None else at}: {problem}")

    def number(self, layout: struct.Struct, what: str) -> Any:
        """One number; `what` is it, for the error."""
        start = self._skip(layout.size, what)
        return layout.unpack_from(self.data, start)[0]

    def u32(self, what: str) -> int:
        return int(self.number(_SCALARS[4], what))

    def u64(self, what: str) -> int:
        return int(self.number(_U64, what))

    def count(self, what: str, least_bytes: int, limit: int) -> int:
        """How many items of at least `least_bytes` follow; more than `limit`, or than fit the file, are refused."""
        at = self.at
        count = self.u64(f"the number of {what}")
        if count > min(limit, self.left // least_bytes):
            self.fail(f"expected at most {limit} {what}, and only what fits {self.left} bytes; got {count}", at)
        return count

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return len(self.data) - self.at

    def text(self, what: str, limit: int = MAX_TEXT_BYTES) -> str:
        """A length and that many bytes of UTF-8."""
        length = self.count(f"bytes of {what}", 1, limit)
        start = self._skip(length, what)
        return self._decode(start, self.at, what)

    def key(self) -> str:
        key = self.text("a key", MAX_KEY_BYTES)
        if not key:
            self.fail("expected a key, got an empty text")
        return key

    def value(self, key: str) -> Any:
        """A typed value; an array comes as a function that decodes it."""
        kind = self.u32(f"the type of {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> Any:
        if kind == _TEXT:
            return self.text(repr(key))
        if kind == _BOOL:
            value = self.number(_SCALARS[0], repr(key))
            if value > 1:
                self.fail(f"{key!r}: expected a bool, 0 or 1, got {value}", self.at - 1)
            return bool(value)
        if kind not in _SCALARS:
            self.fail(f"{key!r}: expected a type from 0 to 12, got {kind}", self.at - 4)
        return self.number(_SCALARS[kind], repr(key))

    def _array(self, key: str) -> Callable[[], Any]:
        kind = self.u32(f"the type of the elements of {key!r}")
        if kind == _TEXT:
            return self._texts(key)
        if kind == _ARRAY:
            self.fail(f"{key!r}: is an array of arrays; expected one of numbers, bools or texts", self.at - 4)
        if kind != _BOOL and kind not in _SCALARS:
            self.fail(f"{key!r}: expected elements of a type from 0 to 12, got {kind}", self.at - 4)
        dtype = np.dtype(np.uint8 if kind == _BOOL else _SCALARS[kind].format)
        count = self.count(f"elements of {key!r}", dtype.itemsize, MAX_ARRAY_BYTES // dtype.itemsize)
        start = self._skip(count * dtype.itemsize, key)

        def decode() -> Any:
            values = np.frombuffer(self.data, dtype, count, start)
            return values != 0 if kind == _BOOL else values.copy()

        return decode

    def _texts(self, key: str) -> Callable[[], Texts]:
        count = self.count(f"texts of {key!r}", _U64.size, self._texts_left)
        self._texts_left -= count
        data, size, at = self.data, len(self.data), self.at
        start, ends, length_at = at, array("q"), _U64.unpack_from
        for _ in range(count):
            if at + 8 > size or (end := at + 8 + length_at(data, at)[0]) > size:
                self.fail(f"{key!r}: the file ends within text {len(ends)} of {count}", at)
            at = end
            ends.append(at)
        self.at = at
        if ends and at - start - 8 * count > MAX_ARRAY_BYTES:
            self.fail(f"{key!r}: expected at most {MAX_ARRAY_BYTES} bytes of texts, got {at - start}", start)

        def decode() -> Texts:
            return self._flatten(key, start, np.frombuffer(ends, np.int64) - start)

        return decode

    def _flatten(self, key: str, start: int, ends: npt.NDArray[np.int64]) -> Texts:
        """Texts of which each lies behind its length, from `start` on; `ends` counts from there."""
        region = np.frombuffer(self.data, np.uint8, int(ends[-1]) if len(ends) else 0, start)
        begins = np.concatenate([np.zeros(1, np.int64), ends])[:-1]  # where the length of each text lies
        is_text = np.ones(len(region), np.bool_)
        is_text[(begins[:, None] + np.arange(_U64.size)).ravel()] = False
        bounds = np.zeros(len(ends) + 1, np.int32)
        np.cumsum(ends - begins - _U64.size, out=bounds[1:])
        blob = region[is_text].tobytes()
        if (at := _first_fault(blob, bounds)) >= 0:
            text = int(np.searchsorted(bounds, at, "right")) - 1
            place = start + int(begins[text]) + _U64.size + at - int(bounds[text])
            self.fail(f"{key!r}: text {text} is not UTF-8", place)
        return Texts(blob, bounds)

    def _decode(self, start: int, end: int, what: str) -> str:
        try:
            return str(self.data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8: {error.reason}", start + error.start)

    def _skip(self, size_bytes: int, what: str) -> int:
        """Where the next `size_bytes` start, after stepping over them."""
        if size_bytes > self.left:
            self.fail(f"the file ends within {what}: expected {size_bytes} bytes, {self.left} are left")
        start = self.at
        self.at += size_bytes
        return start


def _first_fault(blob: bytes, bounds: npt.NDArray[np.int32]) -> int:
    """The first byte at which one of the texts in `blob` is not UTF-8, -1 if all are."""
    try:
        blob.decode()
    except UnicodeDecodeError as error:
        return error.start
    firsts = bounds[:-1][np.diff(bounds) > 0]
    torn = firsts[np.frombuffer(blob, np.uint8)[firsts] & 0xC0 == 0x80]  # a character lies across two texts
    return int(torn[0]) if len(torn) else -1
