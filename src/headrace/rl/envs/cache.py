"""Compiled environments on disk: a digest of everything that went into one, in; its machine code, out.

A file is its content behind its own SHA-256: half a file, or a changed one, is no file. Files are written whole or not
at all; what cannot be written is compiled again next time.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from headrace.store.durable import replace_file
from headrace.store.sources.cache import default_cache

__all__ = ["ObjectCache"]

_DIGEST_BYTES = 32


class ObjectCache:
    """A folder of machine code; by default `rl-envs` in Headrace's cache. `folder` None: there."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else default_cache() / "rl-envs"

    def path(self, digest: str) -> Path:
        return self.folder / f"{digest}.o"

    def find(self, digest: str) -> bytes | None:
        """The machine code of `digest`, or None when it is not there or not whole."""
        try:
            stored = self.path(digest).read_bytes()
        except OSError:
            return None
        content = stored[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == stored[:_DIGEST_BYTES] else None

    def keep(self, digest: str, content: bytes) -> None:
        """Store machine code; a full or read-only disk is no failure."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path(digest), hashlib.sha256(content).digest() + content)
