"""A replay memory on disk: rows stream out of a buffer into one file, and from a file into a new buffer.

The file: 8 bytes of magic, the length of a JSON header (uint64), the header (fields, settings, the next sequence), a
sum; then chunks of rows, oldest first, each the number of rows (uint64) and so many packed records; a chunk of 0 rows,
a sum. A sum is the CRC-32 (uint32) of all that came before it. Numbers are little-endian.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import IntegrityError, InvalidInput, NotFound
from headrace.rl.buffers.fields import Batch, Field, fields_of, note_of
from headrace.store.durable import fsync_dir, scratch_name

if TYPE_CHECKING:
    from headrace.rl.buffers.replay import ReplayBuffer

__all__ = ["load", "save"]

Buffer = TypeVar("Buffer", bound="ReplayBuffer")

_MAGIC = b"HRREPLAY"
_VERSION = 1
_CHUNK_BYTES = 1 << 22
_LEAF = " leaf"  # no field can have this name
_NUMBER = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def _record(fields: tuple[Field, ...], with_leaf: bool) -> np.dtype[Any]:
    parts: list[Any] = [(field.name, field.dtype, field.shape) for field in fields]
    return np.dtype([*parts, (_LEAF, np.float64)] if with_leaf else parts)


class _Summed:
    """A file whose bytes are summed on their way."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self.crc = file, path, 0

    def write(self, data: bytes | memoryview) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self._file.write(data)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise IntegrityError(f"{self._path}: the file ends early")
        self.crc = zlib.crc32(data, self.crc)
        return data

    def read_number(self) -> int:
        return int(_NUMBER.unpack(self.read(_NUMBER.size))[0])

    def write_sum(self) -> None:
        self.write(_CRC.pack(self.crc))

    def check_sum(self) -> None:
        expected = self.crc
        if _CRC.unpack(self.read(_CRC.size))[0] != expected:
            raise IntegrityError(f"{self._path}: damaged: its bytes do not match their sum")


def save(buffer: ReplayBuffer, path: Path) -> int:
    """Write the rows of `buffer`, oldest first; the file appears whole or not at all. Returns how many rows."""
    scratch = path.with_name(scratch_name("replay"))
    try:
        with scratch.open("xb") as file:
            rows = _write(buffer, _Summed(file, path))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    fsync_dir(path.parent)
    return rows


def _write(buffer: ReplayBuffer, out: _Summed) -> int:
    leaves = buffer._leaves()
    first, end = buffer.window
    header = {"version": _VERSION, "fields": note_of(buffer.fields), "end": end, **buffer._settings()}
    text = json.dumps(header).encode()
    out.write(_MAGIC + _NUMBER.pack(len(text)) + text)
    out.write_sum()
    record = _record(buffer.fields, leaves is not None)
    chunk = max(1, _CHUNK_BYTES // record.itemsize)
    total = 0
    for start in range(first, end, chunk):
        wanted = np.arange(start, min(start + chunk, end))
        rows = np.zeros(len(wanted), record)
        batch = Batch(
            {field.name: rows[field.name] for field in buffer.fields},
            wanted % buffer.capacity,
            np.zeros(len(wanted), np.int64),
            np.ones(len(wanted), np.float32),
        )
        buffer.gather(batch.slots, batch)
        if leaves is not None:
            rows[_LEAF] = leaves[batch.slots]
        kept = rows[batch.sequences == wanted]
        if len(kept):
            out.write(_NUMBER.pack(len(kept)))
            out.write(kept.view(np.uint8).data)
            total += len(kept)
    out.write(_NUMBER.pack(0))
    out.write_sum()
    return total


def load(kind: type[Buffer], path: Path, name: str | None) -> Buffer:
    """A new buffer of `kind` with the rows of the file at `path`, which is read twice: its sum first, then its rows."""
    try:
        with path.open("rb") as file:
            header = _header(_Summed(file, path), path)
            version, note, end = header.pop("version", None), header.pop("fields", ""), header.pop("end", 0)
            if version != _VERSION:
                raise IntegrityError(f"{path}: version {version}, expected {_VERSION}")
            fields = fields_of(note)
            record = _record(fields, "_newest" in header)
            total = sum(len(rows) for rows in _rows(file, path, record, header["capacity"]))
            if total > end:
                raise IntegrityError(f"{path}: {total} rows, but only {end} were ever pushed")
            if ("_newest" in header) != hasattr(kind, "update_priorities"):
                raise InvalidInput(f"{path}: its rows have {'' if '_newest' in header else 'no '}priorities")
            settings = {key: value for key, value in header.items() if not key.startswith("_")}
            buffer = kind(fields, name=name, _first=end - total, **settings)
            _fill(buffer, _rows(file, path, record, buffer.capacity), header)
            return buffer
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such file") from error


def _header(source: _Summed, path: Path) -> dict[str, Any]:
    if source.read(len(_MAGIC)) != _MAGIC:
        raise IntegrityError(f"{path}: not a saved replay memory")
    length = source.read_number()
    if length > os.stat(path).st_size:
        raise IntegrityError(f"{path}: a header of {length} bytes in a file of {os.stat(path).st_size}")
    text = source.read(length)
    source.check_sum()
    header: dict[str, Any] = json.loads(text)
    return header


def _rows(file: BinaryIO, path: Path, record: np.dtype[Any], capacity: int) -> Iterator[NDArray[Any]]:
    """The rows from the beginning, chunk by chunk; the sum is known, and looked at, after the last one."""
    file.seek(0)
    source = _Summed(file, path)
    _header(source, path)
    size, total = os.stat(path).st_size, 0
    while count := source.read_number():
        total += count
        if total > capacity or count * record.itemsize > size:
            raise IntegrityError(f"{path}: more rows than fit")
        yield np.frombuffer(source.read(count * record.itemsize), record)
    source.check_sum()
    if file.read(1):
        raise IntegrityError(f"{path}: there is more after its end")


def _fill(buffer: ReplayBuffer, chunks: Iterator[NDArray[Any]], header: dict[str, Any]) -> None:
    leaves = np.zeros(buffer.capacity)
    for rows in chunks:
        at = buffer.window[1]
        buffer.push(**{field.name: rows[field.name] for field in buffer.fields})
        if _LEAF in (rows.dtype.names or ()):
            leaves[np.arange(at, at + len(rows)) % buffer.capacity] = rows[_LEAF]
    buffer._resume(header, leaves)
