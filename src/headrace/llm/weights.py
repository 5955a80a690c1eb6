"""Repacked weights, kept on disk between runs: a key and a way to build in, a mapped `WeightFile` out.

    <cache>/weights/<key>.pack     one model in one layout; last used when it was last modified
    <cache>/weights/.<key>.…       being written; swept once its writer is gone
    <cache>/digests/               what model files hash to (`headrace.llm.fingerprint`)

A file appears whole or not at all, whenever its writer dies. Loaders of one model wait for the one that builds it.
Where nothing can be kept (a full disk, a cache that cannot be written, too small a limit) the weights are built in
memory, and a warning says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.errors import ConfigError, Conflict, IntegrityError, InvalidInput, LoadFailed
from headrace.llm.fingerprint import fingerprint
from headrace.llm.weight_file import NoRoom, WeightFile, Writer
from headrace.store.durable import fsync_dir, scratch_name
from headrace.store.lock import locked
from headrace.store.sources.cache import default_cache

__all__ = ["DEFAULT_LIMIT_BYTES", "CachedWeights", "WeightCache"]

DEFAULT_LIMIT_BYTES = 20 << 30

Build: TypeAlias = Callable[[Writer], None]

_SUFFIX = ".pack"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """One file of the cache. `label` is what it was made from ("" if it is damaged); `used_at_s` counts from 1970."""

    key: str
    label: str
    path: Path
    size_bytes: int
    used_at_s: float


class WeightCache:
    """The weights below one folder. Many threads and processes may use it at once.

    Attributes:
        root: The cache's folder; default `$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`.
        limit_bytes: Most that all files may take; the least recently used go first, never the one just opened. 0 keeps
            nothing. Default `$HEADRACE_CACHE_BYTES`, else 20 GiB; raises `ConfigError` if that is no number.
    """

    def __init__(self, root: Path | None = None, limit_bytes: int | None = None) -> None:
        self.root = root or default_cache()
        self.limit_bytes = _limit() if limit_bytes is None else limit_bytes
        self.folder = self.root / "weights"

    def key(self, files: Iterable[str | Path], layout: str) -> str:
        """The key of a model's `files` in a `layout` (packing version and whatever else shapes the packed bytes)."""
        content = fingerprint(files, self.root / "digests")
        return hashlib.sha256(f"{content} {layout}".encode()).hexdigest()[:40]

    def open(self, key: str, build: Build, *, label: str = "") -> WeightFile:
        """The weights stored under `key`; if there are none, or damaged ones, `build` writes them first.

        Args:
            key: Letters, digits, "_" and "-"; as `key` returns it.
            build: Writes every blob through the `Writer`. May be called a second time, when the disk is full.
            label: What the weights are made from, for `headrace cache`.
        """
        if not re.fullmatch(r"[\w-]+", key):
            raise InvalidInput(f"cache key {key!r}: expected letters, digits, '_' and '-'")
        try:
            return self._cached(key) or self._build(key, build, label)
        except NoRoom as problem:
            if self.limit_bytes:
                _log.warning("%s: the weights of %s are not kept: %s", self.folder, label or key, problem)
        return _in_memory(key, build, label)

    def entries(self) -> list[CachedWeights]:
        """What is kept, the most recently used first."""
        found = []
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                found.append(CachedWeights(path.stem, _label(path), path, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda entry: -entry.used_at_s)

    def verify(self, key: str) -> None:
        """Read every byte kept under `key`; raises `IntegrityError`, after removing the file, if it is damaged."""
        path = self._path(key)
        try:
            file = WeightFile(path, key)
            try:
                file.verify()
            finally:
                file.close()
        except IntegrityError:
            path.unlink(missing_ok=True)
            raise

    def clear(self) -> int:
        """Remove all weights and remembered digests; returns the bytes freed. A loaded model keeps its weights."""
        freed = sum(_remove(path) for path in self._files()) + self._sweep()
        for note in (self.root / "digests").glob("*"):
            freed += _remove(note)
        return freed

    def _cached(self, key: str) -> WeightFile | None:
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NoRoom(f"{path}: {error.strerror}") from error
        try:
            file = WeightFile(path, key, descriptor)
        except IntegrityError as error:
            _log.warning("%s; they are built again", error)
            _remove(path)
            return None
        else:
            with contextlib.suppress(OSError):
                os.utime(descriptor)
            return file
        finally:
            os.close(descriptor)

    def _build(self, key: str, build: Build, label: str) -> WeightFile:
        if not self.limit_bytes:
            raise NoRoom("the cache is off")
        with contextlib.ExitStack() as stack:
            with _on_disk():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                stack.enter_context(locked(self._lock(key), f"weights of {label or key}", say=_log.info))
            if file := self._cached(key):  # another process built them while we waited
                return file
            with _on_disk():
                self._sweep(key)
                scratch = self.folder / f".{key}{scratch_name('write')}"
                descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                writer = Writer(descriptor, key, label, self.limit_bytes)
                build(writer)
                writer.finish()
                file = WeightFile(self._path(key), key, descriptor)
                with _on_disk():
                    scratch.replace(self._path(key))
                    fsync_dir(self.folder)
            finally:
                os.close(descriptor)
                scratch.unlink(missing_ok=True)
        self._evict(key)
        return file

    def _evict(self, keep: str) -> None:
        entries = self.entries()
        total = sum(entry.size_bytes for entry in entries)
        for entry in reversed(entries):
            if total <= self.limit_bytes:
                break
            if entry.key != keep:
                total -= _remove(entry.path)
                _log.info("%s: removed, the cache may have %d bytes", entry.path, self.limit_bytes)

    def _sweep(self, held: str = "") -> int:
        """Remove what killed writers left behind; `held` is the key whose lock the caller holds."""
        freed = 0
        for scratch in self.folder.glob(".*.write-*"):
            key = scratch.name[1:].partition(".")[0]
            with contextlib.suppress(Conflict, OSError), contextlib.ExitStack() as stack:
                if key != held:
                    stack.enter_context(locked(self._lock(key), key, wait_s=0))
                freed += _remove(scratch)
        return freed

    def _files(self) -> Iterator[Path]:
        return self.folder.glob(f"[!.]*{_SUFFIX}")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _lock(self, key: str) -> Path:
        return self.folder / f".lock-{key}"


def _in_memory(key: str, build: Build, label: str) -> WeightFile:
    descriptor = os.memfd_create("headrace-weights", os.MFD_CLOEXEC)
    try:
        writer = Writer(descriptor, key, label)
        build(writer)
        writer.finish()
        return WeightFile(Path("memory"), key, descriptor)
    except NoRoom as error:
        raise LoadFailed(f"{label}: repacked weights find no room, in the cache nor in memory: {error}") from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoRoom(f"{error.strerror} ({error.filename})" if error.filename else str(error)) from error


def _remove(path: Path) -> int:
    """Unlink; the bytes freed, 0 if somebody else was quicker or it cannot be done."""
    try:
        size_bytes = path.stat().st_size
        path.unlink()
    except OSError:
        return 0
    return size_bytes


def _label(path: Path) -> str:
    with contextlib.suppress(IntegrityError):
        file = WeightFile(path)
        file.close()
        return file.label
    return ""


def _limit() -> int:
    text = os.environ.get("HEADRACE_CACHE_BYTES", "")
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError(f"HEADRACE_CACHE_BYTES: expected a whole number of bytes, got {text!r}")
    return int(text) if text else DEFAULT_LIMIT_BYTES
