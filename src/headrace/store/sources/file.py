"""Source `file://PATH` or a plain path: in flows a file or folder of this machine, out comes a copy of it.

Copies, never hard links: an installed version must not change when someone edits the original.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import InvalidInput, NotFound
from headrace.store.edit import Fetched
from headrace.store.files import copy_stream, open_regular
from headrace.store.names import MANIFEST, check_path, suggest_model
from headrace.store.progress import Progress
from headrace.store.verify import walk_files

__all__ = ["FileSource"]


class FileSource:
    """One file, or all files below a folder (hidden ones too, but for a `manifest.json` of another store)."""

    def __init__(self, uri: str) -> None:
        self._path = Path(os.path.abspath(_local_path(uri)))

    @property
    def name(self) -> str:
        folder = self._path.is_dir()
        return suggest_model("" if folder else self._path.name, (self._path if folder else self._path.parent).name)

    def fetch(self, target: Path, progress: Progress, /) -> Fetched:
        path = self._path
        if path.is_dir():
            root = path.resolve()
            files = {check_path(name, str(path)): real for name, real in walk_files(root) if name != MANIFEST}
        elif path.exists():
            files = {check_path(path.name, str(path.parent)): path.resolve()}
        else:
            raise NotFound(f"source {path}: no such file or folder")
        if not files:
            raise NotFound(f"source {path}: the folder holds no files")
        entries = []
        with progress.step(f"copying {path.name}", sum(real.stat().st_size for real in files.values())) as step:
            for name, real in files.items():
                with open_regular(real) as source:
                    entries.append(copy_stream(source, target, name, os.fstat(source.fileno()).st_size, step))
        return Fetched(path.as_uri(), entries)


def _local_path(uri: str) -> str:
    if not uri.lower().startswith("file://"):
        if not uri:
            raise InvalidInput("source: expected a path or URI, got an empty string")
        return os.path.expanduser(uri)
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise InvalidInput(f"source {uri!r}: expected file:///absolute/path with nothing after it but #sha256=HEX")
    return unquote(parts.path)
