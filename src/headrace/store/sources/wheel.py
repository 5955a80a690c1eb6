"""The files of a wheel: in flow an archive and what is wanted of it, out come verified files. Nothing else is unpacked.

The archive is not trusted: names are checked before they become paths, links and duplicates are refused, every file
must match the hash and size that the wheel's own RECORD gives for it, and no more bytes are written than that.
"""

from __future__ import annotations

import base64
import binascii
import csv
import difflib
import fnmatch
import io
import stat
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.errors import IntegrityError, InvalidInput, NotFound
from headrace.store.files import copy_stream
from headrace.store.manifest import FileEntry
from headrace.store.names import safe_path
from headrace.store.progress import Progress

__all__ = ["extract", "select"]

_LARGEST_TOTAL = 64 << 30
_LARGEST_RECORD = 64 << 20
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class _Recorded:
    sha256: str
    size_bytes: int


def extract(wheel: Path, patterns: list[str], target: Path, progress: Progress) -> list[FileEntry]:
    """Write the wheel's files that match `patterns` below `target`.

    Raises `NotFound` with the closest names if a pattern matches nothing, `IntegrityError` for a damaged or hostile
    wheel, `InvalidInput` if two files would get the same name.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _members(archive, wheel.name)
            chosen = select(members, patterns, wheel.name)
            record = _read_record(archive, wheel.name)
            checked = {path: _check(members[name], record, wheel.name) for path, name in chosen.items()}
            total = sum(recorded.size_bytes for recorded in checked.values())
            if total > _LARGEST_TOTAL:
                raise IntegrityError(f"{wheel.name}: the files wanted are {total} bytes, more than {_LARGEST_TOTAL}")
            entries = []
            with progress.step(f"extracting {wheel.name}", total) as step:
                for path, recorded in checked.items():
                    with archive.open(members[chosen[path]]) as source:
                        entry = copy_stream(source, target, path, recorded.size_bytes, step)
                    _compare(entry, recorded, f"{wheel.name}: {chosen[path]}")
                    entries.append(entry)
            return entries
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise IntegrityError(f"{wheel.name}: not a sound wheel: {error}") from error


def select(names: Iterable[str], patterns: list[str], where: str) -> dict[str, str]:
    """Map each path to write to the archive name it comes from.

    A pattern is an archive name, a folder (all below it, with paths relative to it), a glob (paths relative to the
    part before the first wildcard; `*` also crosses `/`), or the end of exactly one archive name.
    """
    known = sorted(names)
    chosen: dict[str, str] = {}
    for pattern in patterns:
        for path, name in _match(known, pattern, where).items():
            if reason := safe_path(path):
                raise IntegrityError(f"{where}: {name!r} is refused: {reason}")
            if chosen.setdefault(path, name) != name:
                raise InvalidInput(f"{where}: {chosen[path]!r} and {name!r} would both be installed as {path!r}")
    return chosen


def _match(known: list[str], pattern: str, where: str) -> dict[str, str]:
    if pattern in known:
        return {PurePosixPath(pattern).name: pattern}
    folder = pattern.rstrip("/") + "/"
    if below := {name.removeprefix(folder): name for name in known if name.startswith(folder)}:
        return below
    if _GLOB & set(pattern):
        fixed = "/".join(pattern.split("/")[: _first_wild(pattern)])
        prefix = fixed + "/" if fixed else ""
        if found := {n.removeprefix(prefix): n for n in known if fnmatch.fnmatchcase(n, pattern)}:
            return found
    ending = [name for name in known if name.endswith("/" + pattern)]
    if len(ending) == 1:
        return {PurePosixPath(pattern).name: ending[0]}
    close = ending or _close(known, pattern)
    raise NotFound(f"{where}: holds no {pattern!r}; close: {', '.join(close)}")


def _first_wild(pattern: str) -> int:
    return next(index for index, part in enumerate(pattern.split("/")) if _GLOB & set(part))


def _close(known: list[str], pattern: str, count: int = 5) -> list[str]:
    by_path = difflib.get_close_matches(pattern, known, count, 0.5)
    bases = {PurePosixPath(name).name: name for name in known}
    by_base = difflib.get_close_matches(PurePosixPath(pattern).name, list(bases), count, 0.4)
    return list(dict.fromkeys([*by_path, *(bases[base] for base in by_base)]))[:count] or known[:count]


def _members(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise IntegrityError(f"{where}: {info.filename!r} is there twice")
        if not info.is_dir():
            members[info.filename] = info
    return members


def _read_record(archive: zipfile.ZipFile, where: str) -> dict[str, _Recorded]:
    """Name -> hash and size, from RECORD: rows of `name,sha256=<URL-safe base64 without padding>,size`."""
    names = [
        name for name in archive.namelist() if fnmatch.fnmatchcase(name, "*.dist-info/RECORD") and name.count("/") == 1
    ]
    if len(names) != 1:
        raise IntegrityError(f"{where}: expected one *.dist-info/RECORD, found {len(names)}")
    if archive.getinfo(names[0]).file_size > _LARGEST_RECORD:
        raise IntegrityError(f"{where}: RECORD is larger than {_LARGEST_RECORD} bytes")
    record = {}
    try:
        for row in csv.reader(io.StringIO(archive.read(names[0]).decode("utf-8"))):
            if len(row) == 3 and row[1].startswith("sha256="):
                raw = base64.urlsafe_b64decode(row[1].removeprefix("sha256=") + "=")
                record[row[0]] = _Recorded(raw.hex(), int(row[2]))
    except (ValueError, csv.Error, binascii.Error) as error:
        raise IntegrityError(f"{where}: RECORD cannot be read: {error}") from error
    return record


def _check(info: zipfile.ZipInfo, record: dict[str, _Recorded], where: str) -> _Recorded:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise IntegrityError(f"{where}: {info.filename!r} is a link or device; expected a regular file")
    recorded = record.get(info.filename)
    if recorded is None:
        raise IntegrityError(f"{where}: RECORD gives no sha256 for {info.filename!r}")
    if recorded.size_bytes != info.file_size:
        raise IntegrityError(
            f"{where}: {info.filename!r}: RECORD says {recorded.size_bytes} bytes, the archive {info.file_size}"
        )
    return recorded


def _compare(entry: FileEntry, recorded: _Recorded, where: str) -> None:
    if entry.size_bytes != recorded.size_bytes:
        raise IntegrityError(f"{where}: expected {recorded.size_bytes} bytes, got {entry.size_bytes}")
    if entry.sha256 != recorded.sha256:
        raise IntegrityError(f"{where}: expected sha256 {recorded.sha256}, got {entry.sha256}")
