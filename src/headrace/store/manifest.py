"""`manifest.json`: what a version folder must hold, byte for byte. Entries flow in at install, a checked list out.

The digest is the SHA-256 of the canonical file list: for each file, sorted by the bytes of its path, one line
`<sha256> <size_bytes> <path>\\n` in UTF-8. It depends on the content alone, not on when or whence it was installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.errors import ConfigError, IntegrityError, InvalidInput
from headrace.store.names import MANIFEST, check_model, check_path, check_version

__all__ = ["FORMAT", "FileEntry", "Manifest", "content_digest", "content_pin", "new_manifest", "read_manifest"]

FORMAT = 1
_LARGEST = 64 << 20
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: POSIX path relative to the version folder, size in bytes, SHA-256 in lower-case hex."""

    path: str
    size_bytes: Annotated[int, Meta(ge=0)]
    sha256: Sha256


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `created` is RFC 3339; `source` the URI the files came from; `digest` see the module."""

    format: int
    name: str
    version: str
    created: Annotated[datetime, Meta(tz=True)]
    source: str
    files: Annotated[list[FileEntry], Meta(min_length=1)]
    digest: Sha256

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class _Head(msgspec.Struct):
    format: int


def content_digest(files: Iterable[FileEntry]) -> str:
    """SHA-256 over the canonical file list, lower-case hex."""
    lines = sorted((entry.path.encode(), f"{entry.sha256} {entry.size_bytes} ".encode()) for entry in files)
    return hashlib.sha256(b"".join(facts + path + b"\n" for path, facts in lines)).hexdigest()


def content_pin(files: list[FileEntry]) -> str:
    """What `#sha256=` is compared with: the hash of the file if there is one, else of the canonical list."""
    return files[0].sha256 if len(files) == 1 else content_digest(files)


def new_manifest(name: str, version: str, source: str, files: list[FileEntry]) -> Manifest:
    """Describe files just written; raises `InvalidInput` for a bad name, version or path."""
    ordered = sorted(files, key=lambda entry: entry.path.encode())
    manifest = Manifest(
        format=FORMAT,
        name=name,
        version=version,
        created=datetime.now(UTC).replace(microsecond=0),
        source=source,
        files=ordered,
        digest=content_digest(ordered),
    )
    _check(manifest, source)
    return manifest


def read_manifest(version_dir: Path) -> Manifest:
    """Read and check `version_dir/manifest.json`, also that it describes this very folder's version.

    Raises `IntegrityError` if it is absent or damaged, `ConfigError` if a newer Headrace wrote it.
    """
    path = version_dir / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise IntegrityError(f"{path}: missing; the folder was not installed by `headrace pull`")
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > _LARGEST:
        raise IntegrityError(f"{path}: larger than {_LARGEST} bytes")
    manifest = _decode(raw, path)
    if manifest.version != version_dir.name:
        raise IntegrityError(f"{path}: describes version {manifest.version!r}, but lies in {version_dir.name!r}")
    return manifest


def _decode(raw: bytes, path: Path) -> Manifest:
    try:
        found = msgspec.json.decode(raw, type=_Head).format
        if found != FORMAT:
            raise ConfigError(f"{path}: manifest format {found}; this Headrace reads format {FORMAT}")
        manifest = msgspec.json.decode(raw, type=Manifest)
        _check(manifest, str(path))
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
        raise IntegrityError(f"{path}: not a valid manifest: {error}") from error
    if (got := content_digest(manifest.files)) != manifest.digest:
        raise IntegrityError(f"{path}: digest of the file list: expected {manifest.digest}, got {got}")
    return manifest


def _check(manifest: Manifest, where: str) -> None:
    check_model(manifest.name)
    check_version(manifest.version)
    paths = {check_path(entry.path, where) for entry in manifest.files}
    if len(paths) != len(manifest.files):
        raise InvalidInput(f"{where}: a path is listed twice")
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:depth]) in paths for depth in range(1, len(parts))):
            raise InvalidInput(f"{where}: path {path!r} lies inside another listed file")
