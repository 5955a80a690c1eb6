"""Proof that a version folder holds what its manifest says: in flows a folder, out its manifest or an `IntegrityError`.

Every file is read and hashed. A file that is missing, extra, longer, shorter or different fails the whole version, and
so does anything that is not a regular file, or a link that leads out of the folder. Only `__pycache__`, which Python
itself writes beside a model's code, is left out of the comparison.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import IntegrityError
from headrace.store.files import hash_file
from headrace.store.manifest import Manifest, read_manifest
from headrace.store.names import MANIFEST
from headrace.store.progress import Progress, Silent

__all__ = ["verify", "walk_files"]

_PYTHON_CACHE = "__pycache__"


def verify(version_dir: Path, progress: Progress | None = None) -> Manifest:
    """Check every byte of one version folder (a link to it, such as `current`, is resolved first).

    Raises `IntegrityError` naming the file, what was expected and what was found.
    """
    root = version_dir.resolve()
    manifest = read_manifest(root)
    found = {path: real for path, real in walk_files(root) if path != MANIFEST}
    expected = {entry.path for entry in manifest.files}
    for path in sorted(found.keys() - expected):
        if _PYTHON_CACHE not in path.split("/"):
            raise IntegrityError(f"{root / path}: not listed in the manifest")
    label = f"{manifest.name}:{manifest.version}: verifying"
    with (progress or Silent()).step(label, manifest.size_bytes) as step:
        for entry in manifest.files:
            if entry.path not in found:
                raise IntegrityError(f"{root / entry.path}: missing; expected {entry.size_bytes} bytes")
            real = found[entry.path]
            # The size is compared first: a truncated file of many gigabytes need not be read to be refused.
            if (size_bytes := real.stat().st_size) != entry.size_bytes:
                raise IntegrityError(f"{root / entry.path}: expected {entry.size_bytes} bytes, got {size_bytes}")
            _, sha256 = hash_file(real, step)
            if sha256 != entry.sha256:
                raise IntegrityError(f"{root / entry.path}: expected sha256 {entry.sha256}, got {sha256}")
    return manifest


def walk_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path relative to `root`, the regular file behind it) for all below `root`, which must be resolved.

    Links that stay inside are followed to files, never to folders (that could go round in circles). Raises
    `IntegrityError` for a link that leads out or nowhere, and for a device, pipe or socket.
    """
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(folder) as entries:
                children = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise IntegrityError(f"{folder}: cannot be read: {error.strerror}") from error
        for child in children:
            path = Path(child.path)
            if child.is_symlink():
                yield path.relative_to(root).as_posix(), _follow(path, root)
            elif child.is_dir(follow_symlinks=False):
                stack.append(path)
            elif stat.S_ISREG(child.stat(follow_symlinks=False).st_mode):
                yield path.relative_to(root).as_posix(), path
            else:
                raise IntegrityError(f"{path}: is a device, pipe or socket; expected a regular file")


def _follow(link: Path, root: Path) -> Path:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError):
        raise IntegrityError(f"{link}: the link leads nowhere") from None
    if not real.is_relative_to(root):
        raise IntegrityError(f"{link}: the link leads out of {root}, to {real}")
    if not stat.S_ISREG(real.stat().st_mode):
        raise IntegrityError(f"{link}: the link leads to something other than a regular file")
    return real
