"""The contract of a model `Source`, for implementers: a maker of sources in, `AssertionError` or nothing out."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.store.names import check_model, check_path
from headrace.store.progress import Silent
from headrace.store.sources import Source
from headrace.store.verify import walk_files

__all__ = ["check_source"]

MakeSource = Callable[[], Source]


def check_source(make: MakeSource, *, absent: MakeSource | None = None) -> None:
    """Fetch a model twice and prove that what the source says of its files is true.

    Args:
        make: Makes a source of a model that is there.
        absent: Makes a source of a model that is not there; fetching it must raise an error of the Headrace tree.
    """
    check_model(make().name)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        once, twice = _fetch(make(), Path(first)), _fetch(make(), Path(second))
        _require(once == twice, "two fetches of one model differ")
    if absent is not None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                absent().fetch(Path(folder), Silent())
            except HeadraceError as error:
                _require(bool(str(error)), "the error must say what is missing")
            else:
                raise AssertionError("fetching what is not there must raise NotFound or Unavailable")


def _fetch(source: Source, target: Path) -> dict[str, str]:
    fetched = source.fetch(target, Silent())
    _require(bool(fetched.source), "`source` must name where the files came from")
    _require(bool(fetched.files), "a model has at least one file")
    on_disk = dict(walk_files(target.resolve()))
    listed = {entry.path for entry in fetched.files}
    _require(set(on_disk) == listed, f"files on disk {sorted(on_disk)} and listed {sorted(listed)} differ")
    for entry in fetched.files:
        check_path(entry.path, "source")
        data = on_disk[entry.path].read_bytes()
        _require(len(data) == entry.size_bytes, f"{entry.path}: {len(data)} bytes, listed {entry.size_bytes}")
        _require(hashlib.sha256(data).hexdigest() == entry.sha256, f"{entry.path}: the digest is not that of the file")
    return {entry.path: entry.sha256 for entry in fetched.files}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
