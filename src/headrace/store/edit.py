"""Changing one model of a repository, by whoever holds its lock: install, switch, remove, sweep.

A new version is written into a hidden folder beside the others, made durable, and renamed into place: a version folder
with a plain name is complete. Made by `ModelStore.edit`.
"""

from __future__ import annotations

import contextlib
import shutil
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigError, Conflict, HeadraceError, IntegrityError, NotFound
from headrace.store.config import check_file
from headrace.store.durable import fsync_dir, fsync_tree, replace_file, replace_link, scratch_name
from headrace.store.manifest import FileEntry, Manifest, new_manifest, read_manifest
from headrace.store.names import CONFIG, CURRENT, MANIFEST, check_version
from headrace.store.progress import Progress
from headrace.store.verify import verify

__all__ = ["Edit", "Fetched", "Installed"]

_SCRATCH = (".install-", ".removed-", ".link-", ".write-")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source wrote into the folder it was given: the files, and the exact URI they came from."""

    source: str
    files: list[FileEntry]


@dataclass(frozen=True, slots=True)
class Installed:
    """`unchanged`: the same content was there and is sound; `repaired`: it was there and damaged."""

    manifest: Manifest
    status: Literal["installed", "unchanged", "repaired"]


class Edit:
    """One model's folder. The reading methods are safe without the lock; the others belong to its holder."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.folder = root / name
        self._trash = root / ".trash" / name

    def versions(self) -> list[str]:
        """Version names, sorted."""
        found = []
        if self.folder.is_dir():
            for child in self.folder.iterdir():
                with contextlib.suppress(HeadraceError):
                    if child.is_dir() and not child.is_symlink():
                        found.append(check_version(child.name))
        return sorted(found)

    def current(self) -> str:
        """The version that `current` names, or "" if it names none that is there."""
        link = self.folder / CURRENT
        if not link.is_symlink():
            if link.exists():
                raise ConfigError(f"{link}: expected a link to a version folder")
            return ""
        real = link.resolve()
        if real.parent != self.folder.resolve():
            raise ConfigError(f"{link}: leads to {real}; expected a version folder beside it")
        return real.name if real.is_dir() else ""

    def version_dir(self, version: str) -> Path:
        """The folder of a version; raises `NotFound` naming those that are there."""
        path = self.folder / check_version(version)
        if path.is_symlink() or not path.is_dir():
            known = ", ".join(self.versions()) or "none"
            raise NotFound(f"model {self.name!r} has no version {version!r}; it has: {known}")
        return path

    def find(self, matches: Callable[[Manifest], bool]) -> Manifest | None:
        """The first installed version whose manifest can be read and matches."""
        for version in self.versions():
            with contextlib.suppress(IntegrityError, ConfigError):
                manifest = read_manifest(self.folder / version)
                if matches(manifest):
                    return manifest
        return None

    def install(self, fill: Callable[[Path], Fetched], *, version: str = "") -> Installed:
        """Let `fill` write files into an empty folder and make that a version, whole or not at all.

        The version's name defaults to the first 12 hex digits of the content's digest. Content that is already there
        (under the given name, or any if none is given) is verified and kept, or replaced if it is damaged. Raises
        `Conflict` if the name belongs to other content, and whatever `fill` raises.
        """
        scratch = self.folder / scratch_name("install")
        scratch.mkdir(parents=True)
        try:
            fetched = fill(scratch)
            manifest = new_manifest(self.name, version or "unnamed", fetched.source, fetched.files)
            found = self.find(lambda m: m.digest == manifest.digest and (not version or m.version == version))
            chosen = found.version if found else version or manifest.digest[:12]
            target = self.folder / chosen
            if found:
                with contextlib.suppress(IntegrityError):
                    return Installed(verify(target), "unchanged")
            elif target.exists() and (version or self._readable(target)):
                raise Conflict(
                    f"version {chosen!r} of model {self.name!r} holds other content; remove it, or choose another"
                )
            manifest = new_manifest(self.name, chosen, fetched.source, fetched.files)
            (scratch / MANIFEST).write_bytes(manifest.encode())
            fsync_tree(scratch)
            damaged = target.exists()
            if damaged:
                # The one change of two renames: between them `current` may lead nowhere, instead of to bad bytes.
                target.rename(self.folder / scratch_name("removed"))
            scratch.rename(target)
            fsync_dir(self.folder)
            return Installed(manifest, "repaired" if damaged else "installed")
        finally:
            self.sweep()

    def switch(self, version: str, progress: Progress | None = None, *, check: bool = True) -> None:
        """Make a version current, once its bytes and its `headrace.toml` are found right (`check` off: they just were).

        Raises `IntegrityError`, or `ConfigError` if the `headrace.toml` names a file that the version lacks.
        """
        target = self.version_dir(version)
        if check:
            self.check_config([entry.path for entry in verify(target, progress).files])
        if self.current() != version:
            replace_link(self.folder / CURRENT, version)

    def has_config(self) -> bool:
        """Whether there is a `headrace.toml`."""
        return (self.folder / CONFIG).is_file()

    def config(self) -> bytes:
        """The content of `headrace.toml`, or b"" if there is none."""
        try:
            return (self.folder / CONFIG).read_bytes()
        except FileNotFoundError:
            return b""

    def check_config(self, paths: Collection[str]) -> None:
        """Raise `ConfigError` if `headrace.toml` names a file that a version with these paths lacks."""
        check_file(self.config(), paths, self.folder / CONFIG)

    def is_pipeline(self) -> bool:
        """Whether there is a `headrace.toml` that declares stages; one that cannot be read declares nothing."""
        try:
            return "stage" in tomllib.loads(self.config().decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):
            return False

    def write_config(self, content: bytes, *, force: bool = False) -> Literal["written", "unchanged", "kept"]:
        """Write `headrace.toml` unless one with other content is there (`kept`), which `force` replaces."""
        path = self.folder / CONFIG
        if path.is_file():
            if path.read_bytes() == content:
                return "unchanged"
            if not force:
                return "kept"
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
        return "written"

    def remove(self, version: str = "", *, force: bool = False) -> None:
        """Delete a version, or the whole model; raises `Conflict` if that takes the current version, unless `force`."""
        current = self.current()
        if version:
            target, grave = self.version_dir(version), self.folder / scratch_name("removed")
        else:
            target, grave = self.folder, self._trash / scratch_name("removed")
        if current and version in ("", current):
            if not force:
                raise Conflict(
                    f"version {current!r} of model {self.name!r} is current; {self._way_out(current, version)}"
                )
            if version:
                (self.folder / CURRENT).unlink()
        grave.parent.mkdir(parents=True, exist_ok=True)
        target.rename(grave)
        self.sweep()

    def sweep(self) -> None:
        """Delete what an interrupted change left behind."""
        for folder in (self.folder, self._trash):
            for child in folder.iterdir() if folder.is_dir() else ():
                if child.name.startswith(_SCRATCH):
                    if child.is_dir() and not child.is_symlink():
                        shutil.rmtree(child, ignore_errors=True)
                    else:
                        child.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._trash.rmdir()
            self._trash.parent.rmdir()

    def discard_if_empty(self) -> None:
        """Delete the model's folder if nothing is in it, as after a failed first install."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _way_out(self, current: str, version: str) -> str:
        """How a removal that was refused can be had."""
        others = [other for other in self.versions() if other != current]
        if version and others:
            return f"first run: headrace models switch {self.name} {others[-1]}; or remove it all the same with --force"
        return "--force removes it all the same"

    def _readable(self, version_dir: Path) -> bool:
        with contextlib.suppress(IntegrityError):
            read_manifest(version_dir)
            return True
        return False
