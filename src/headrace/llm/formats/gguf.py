"""GGUF files, version 2 and 3, whole or split: a path in, metadata and zero-copy tensors out.

Layout: "GGUF", version, number of tensors, number of keys, the keys with their values, a record for each tensor (name,
dimensions innermost first, type, offset), and from the next multiple of the alignment on the tensors' bytes.
Source: the GGUF specification of the ggml project. A file is an untrusted input: all of it is checked before use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import LoadFailed
from headrace.llm.formats.checkpoint import MappedCheckpoint, TensorInfo
from headrace.llm.formats.mapped import MappedFile
from headrace.llm.formats.metadata import Cursor, Metadata
from headrace.llm.formats.types import GGUF_NAMES, TENSOR_TYPES

__all__ = ["MAGIC", "GgufCheckpoint"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 255
MAX_DIMS = 4
ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class _Record(NamedTuple):
    """A tensor as the header has it; `at` is where in the file it says so."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    at: int


class GgufCheckpoint(MappedCheckpoint):
    """An open model of one GGUF file or of all parts of a split one; `path` may name any part.

    Raises `LoadFailed` saying which file, where, what was expected and what came.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.metadata, tensors = self._load(path)
            count = self._number("split.count")
            if count > 1:
                self._load_parts(path, count, tensors)
        except BaseException:
            self.close()
            raise
        self.tensors = tensors

    def _load(self, path: Path) -> tuple[Metadata, dict[str, TensorInfo]]:
        file = MappedFile(path)
        self._files.append(file)
        cursor = Cursor(file.path, file.view)
        metadata, records = _header(cursor)
        alignment = _alignment(cursor, metadata)
        first = -(-cursor.at // alignment) * alignment
        _check_layout(cursor, records, first, alignment)
        data, tensors = file.array, {}
        for record in records:
            start = first + record.offset
            tensors[record.name] = TensorInfo(
                record.name, record.type, record.shape, data[start : start + _size_bytes(record)]
            )
        return metadata, tensors

    def _load_parts(self, path: Path, count: int, tensors: dict[str, TensorInfo]) -> None:
        """Add the tensors of all other parts, and take the metadata from the first."""
        named = _PART.fullmatch(path.name)
        if not named or int(named[3]) != count:
            raise LoadFailed(f"{path}: is a part of {count}; expected a name that ends in -00001-of-{count:05d}.gguf")
        given = int(named[2]) - 1
        self._check_part(path, self.metadata, given, count)
        for part in range(count):
            if part == given:
                continue
            sibling = path.with_name(f"{named[1]}-{part + 1:05d}-of-{count:05d}.gguf")
            metadata, more = self._load(sibling)
            self._check_part(sibling, metadata, part, count)
            if part == 0:
                self.metadata = metadata
            if twice := tensors.keys() & more.keys():
                raise LoadFailed(f"{sibling}: tensor {min(twice)!r} is in another part too")
            tensors.update(more)
        expected = self._number("split.tensors.count")
        if expected not in (0, len(tensors)):
            raise LoadFailed(f"{path}: expected {expected} tensors in {count} parts, got {len(tensors)}")

    def _check_part(self, path: Path, metadata: Mapping[str, Any], part: int, count: int) -> None:
        said = (metadata.get("split.no"), metadata.get("split.count"))
        if said != (part, count):
            raise LoadFailed(f"{path}: expected split.no {part} and split.count {count}, got {said[0]} and {said[1]}")

    def _number(self, key: str) -> int:
        value = self.metadata.get(key, 0)
        if not isinstance(value, int):
            raise LoadFailed(f"{self.path}: {key}: expected a whole number, got {value!r}")
        return value


def _header(cursor: Cursor) -> tuple[Metadata, list[_Record]]:
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        cursor.fail(f"expected a GGUF file, which begins with {MAGIC!r}, got {magic!r}", 0)
    cursor.at = 4
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        cursor.fail("the file is big-endian; expected little-endian", 4)
    if version not in VERSIONS:
        cursor.fail(f"expected GGUF version {' or '.join(map(str, VERSIONS))}, got {version}", 4)
    n_tensors = cursor.count("tensors", 32, MAX_TENSORS)
    n_keys = cursor.count("keys", 13, MAX_KEYS)
    values: dict[str, Any] = {}
    for _ in range(n_keys):
        at = cursor.at
        key = cursor.key()
        if key in values:
            cursor.fail(f"key {key!r} is there twice", at)
        values[key] = cursor.value(key)
    names: set[str] = set()
    records = []
    for _ in range(n_tensors):
        record = _record(cursor)
        if record.name in names:
            cursor.fail(f"tensor {record.name!r} is there twice", record.at)
        names.add(record.name)
        records.append(record)
    return Metadata(values), records


def _record(cursor: Cursor) -> _Record:
    at = cursor.at
    name = cursor.text("a tensor's name", MAX_NAME_BYTES)
    n_dims = cursor.u32(f"the number of dimensions of {name!r}")
    if not name or not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"tensor {name!r}: expected a name and 1 to {MAX_DIMS} dimensions, got {n_dims}", at)
    dims = [cursor.u64(f"a dimension of {name!r}") for _ in range(n_dims)]
    number = cursor.u32(f"the type of {name!r}")
    offset = cursor.u64(f"the offset of {name!r}")
    kind = GGUF_NAMES.get(number, f"number {number}")
    if kind not in TENSOR_TYPES:
        cursor.fail(f"tensor {name!r} has the type {kind}; expected one of {', '.join(TENSOR_TYPES)}", at)
    if min(dims) == 0 or dims[0] % TENSOR_TYPES[kind].values:
        blocks = TENSOR_TYPES[kind].values
        cursor.fail(f"tensor {name!r}: expected {kind} rows of whole blocks of {blocks}, got dimensions {dims}", at)
    return _Record(name, kind, tuple(reversed(dims)), offset, at)


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(f"general.alignment: expected a power of two from 8 to {MAX_ALIGNMENT}, got {value!r}")
    return value


def _size_bytes(record: _Record) -> int:
    rows = 1
    for dim in record.shape[:-1]:
        rows *= dim
    return rows * TENSOR_TYPES[record.type].row_bytes(record.shape[-1])


def _check_layout(cursor: Cursor, records: list[_Record], first: int, alignment: int) -> None:
    """Every tensor lies aligned within the file, and none over another."""
    end, before = 0, ""
    for record in sorted(records, key=lambda record: record.offset):
        size = _size_bytes(record)
        if record.offset % alignment:
            cursor.fail(f"tensor {record.name!r}: offset {record.offset} is no multiple of {alignment}", record.at)
        if record.offset < end:
            cursor.fail(f"tensor {record.name!r} at offset {record.offset} lies over {before!r}", record.at)
        if first + record.offset + size > len(cursor.data):
            cursor.fail(
                f"tensor {record.name!r} of {record.type} {list(record.shape)} takes the bytes from "
                f"{first + record.offset} to {first + record.offset + size}; the file has {len(cursor.data)}",
                record.at,
            )
        end, before = record.offset + size, record.name
