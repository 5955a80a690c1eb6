"""Downloaded wheels, kept by content: in flows a package and version, out comes the path of a sound wheel.

    <cache>/wheels/<sha256>/<file name of the wheel>

`<cache>` is `$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`. A cached wheel is hashed
before it is used again, so an interrupted pull continues from it, and a damaged one is downloaded anew.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.store.durable import fsync_dir, fsync_tree, scratch_name
from headrace.store.files import hash_file
from headrace.store.lock import locked
from headrace.store.progress import Progress
from headrace.store.sources.pip import download

__all__ = ["WheelCache", "default_cache"]

_SCRATCH = ".download-"


def default_cache() -> Path:
    """`$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`."""
    if chosen := os.environ.get("HEADRACE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


class WheelCache:
    """The wheels below one folder; many processes may use it at once."""

    def __init__(self, root: Path | None = None) -> None:
        self._wheels = (root or default_cache()) / "wheels"

    def get(self, package: str, version: str, progress: Progress) -> Path:
        """A wheel of `package`: the cached one if `version` is given and there, else what pip downloads.

        Raises `NotFound` if there is none, `Unavailable` if pip fails, `HeadraceError` if the cache cannot be written.
        """
        key = re.sub(r"[-_.]+", "_", package).lower()
        try:
            with locked(self._wheels / f".lock-{key}", f"wheel of {package}", say=progress.note):
                return (version and self._cached(key, version, progress)) or self._download(
                    key, package, version, progress
                )
        except OSError as error:
            raise HeadraceError(f"wheel cache {self._wheels}: {error.strerror}") from error

    def _cached(self, key: str, version: str, progress: Progress) -> Path | None:
        found = []
        for wheel in self._wheels.glob("*/*.whl"):
            parts = wheel.name.split("-")
            if len(parts) >= 5 and re.sub(r"[-_.]+", "_", parts[0]).lower() == key and parts[1] == version:
                found.append(wheel)
        # Several builds of one version (for other interpreters): pip knows which one fits.
        if len(found) != 1:
            return None
        if self._hash(found[0], progress) == found[0].parent.name:
            return found[0]
        progress.note(f"{found[0].name}: the cached copy is damaged; downloading it again")
        shutil.rmtree(found[0].parent)
        return None

    def _download(self, key: str, package: str, version: str, progress: Progress) -> Path:
        for leftover in self._wheels.glob(f"{_SCRATCH}{key}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = self._wheels / scratch_name(f"{_SCRATCH[1:]}{key}")
        scratch.mkdir()
        try:
            wheel = download(package, version, scratch, progress)
            home = self._wheels / self._hash(wheel, progress)
            fsync_tree(scratch)
            home.mkdir(exist_ok=True)
            wheel.replace(home / wheel.name)
            fsync_dir(home)
            return home / wheel.name
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _hash(self, wheel: Path, progress: Progress) -> str:
        with progress.step(f"hashing {wheel.name}", wheel.stat().st_size) as step:
            return hash_file(wheel, step)[1]
