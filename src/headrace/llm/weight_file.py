"""Repacked weights in one file: named blobs in, through a `Writer`; out, mapped, the same bytes under the same names.

    64 bytes      magic, version, where the index is, its size and SHA-256
    blobs         each from a multiple of 4096 on
    index         JSON: key, label, and for each blob its offset, bytes and SHA-256

The header is written last, so that a file that was cut off is never taken for a whole one.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import IntegrityError, InvalidInput, LoadFailed
from headrace.llm.formats.mapped import MappedFile

__all__ = ["ALIGNMENT", "NoRoom", "WeightFile", "Writer"]

ALIGNMENT = 4096
"""Every blob begins at a multiple of this many bytes."""

_MAGIC, _VERSION = b"HR-PACK\0", 1
_HEADER = struct.Struct("<8sIIQQ32s")
_CHUNK = 1 << 24


class NoRoom(Exception):
    """The place where weights were to be kept cannot take them; never leaves the cache."""


class _Blob(msgspec.Struct, array_like=True, frozen=True):
    offset: int
    size_bytes: int
    sha256: str


class _Index(msgspec.Struct, frozen=True):
    key: str
    label: str
    blobs: dict[str, _Blob]


class Writer:
    """Takes blobs, one after the other, into an open file; raises `NoRoom` when that cannot take them."""

    def __init__(self, descriptor: int, key: str, label: str, limit_bytes: int | None = None) -> None:
        self._descriptor, self._key, self._limit = descriptor, key, limit_bytes
        self._label = label.encode("utf-8", "backslashreplace").decode()
        self._blobs: dict[str, _Blob] = {}
        self._end = ALIGNMENT

    def write(self, name: str, data: npt.NDArray[Any]) -> None:
        """Append the bytes of a C-contiguous array under a name that is new; raises `InvalidInput` otherwise."""
        if not name or name in self._blobs:
            raise InvalidInput(f"blob {name!r}: expected a name that is not taken")
        if not data.flags.c_contiguous:
            raise InvalidInput(f"blob {name!r}: expected a C-contiguous array")
        content = data.reshape(-1).view(np.uint8).data
        blob = _Blob(self._end, data.nbytes, hashlib.sha256(content).hexdigest())
        if self._limit is not None and self._end + data.nbytes > self._limit:
            raise NoRoom(f"they take more than the {self._limit} bytes that the cache may have")
        self._put(content, self._end)
        self._blobs[name] = blob
        self._end = -(-(self._end + data.nbytes) // ALIGNMENT) * ALIGNMENT

    def finish(self) -> None:
        """Write the index and the header, and make all of it survive a power cut."""
        index = msgspec.json.encode(_Index(self._key, self._label, self._blobs))
        self._put(memoryview(index), self._end)
        header = _HEADER.pack(_MAGIC, _VERSION, 0, self._end, len(index), hashlib.sha256(index).digest())
        self._sync()
        self._put(memoryview(header), 0)
        self._sync()

    def _put(self, data: memoryview, at: int) -> None:
        try:
            while data:
                written = os.pwrite(self._descriptor, data[:_CHUNK], at)
                data, at = data[written:], at + written
        except OSError as error:
            raise NoRoom(f"writing {len(data)} bytes: {error.strerror}") from error

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise NoRoom(f"writing to the disk: {error.strerror}") from error


class WeightFile(Mapping[str, npt.NDArray[np.uint8]]):
    """A finished file, mapped: name to uint8[size], read-only, beginning at a multiple of 4096.

    Raises `IntegrityError` unless header, index and size are those of a whole file for `key` ("": of any).
    """

    def __init__(self, path: Path, key: str = "", descriptor: int | None = None) -> None:
        self.path = str(path)
        try:
            self._file = MappedFile(path, descriptor)
        except LoadFailed as error:
            raise IntegrityError(str(error)) from error
        try:
            self._index = _read_index(self._file, key)
        except BaseException:
            self._file.close()
            raise
        self._array = self._file.array

    @property
    def label(self) -> str:
        """What it was made from, for people."""
        return self._index.label

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The whole file."""
        return self._array

    def __getitem__(self, name: str) -> npt.NDArray[np.uint8]:
        blob = self._index.blobs[name]
        return self._array[blob.offset : blob.offset + blob.size_bytes]

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.blobs)

    def __len__(self) -> int:
        return len(self._index.blobs)

    def verify(self) -> None:
        """Read every byte; raises `IntegrityError` naming the first blob that is not what was written."""
        for name, blob in self._index.blobs.items():
            if hashlib.sha256(self[name].data).hexdigest() != blob.sha256:
                raise IntegrityError(f"{self.path}: blob {name!r} is not what was written")

    def close(self) -> None:
        """Let go of the file; blobs taken from it stay valid while they are held."""
        self._array = np.empty(0, np.uint8)
        self._index = _Index(self._index.key, self._index.label, {})
        self._file.close()


def _read_index(file: MappedFile, key: str) -> _Index:
    view = file.view
    if file.size < _HEADER.size:
        raise IntegrityError(f"{file.path}: expected {_HEADER.size} bytes of header, it has {file.size}")
    magic, version, _, offset, size_bytes, digest = _HEADER.unpack_from(view)
    if (magic, version) != (_MAGIC, _VERSION):
        raise IntegrityError(f"{file.path}: expected {_MAGIC!r} version {_VERSION}, got {magic!r} version {version}")
    if offset + size_bytes != file.size:
        raise IntegrityError(f"{file.path}: expected {offset + size_bytes} bytes, it has {file.size}")
    text = view[offset:]
    if hashlib.sha256(text).digest() != digest:
        raise IntegrityError(f"{file.path}: the index is not what was written")
    try:
        index = msgspec.json.decode(text, type=_Index)
    except msgspec.DecodeError as error:
        raise IntegrityError(f"{file.path}: the index cannot be read: {error}") from error
    for name, blob in index.blobs.items():
        if blob.offset % ALIGNMENT or not 0 <= blob.offset <= blob.offset + blob.size_bytes <= offset:
            raise IntegrityError(f"{file.path}: blob {name!r} lies outside the file")
    if key and index.key != key:
        raise IntegrityError(f"{file.path}: expected the weights {key}, it has {index.key}")
    return index
