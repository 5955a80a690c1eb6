"""Source `URI + URI + …`: in flow sources of one file each, out comes one file, their bytes in that order.

For files too large for one package. A pin behind the last URI is that of the whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from headrace.errors import InvalidInput
from headrace.store.edit import Fetched
from headrace.store.files import copy_stream, open_regular
from headrace.store.progress import Progress
from headrace.store.sources import Source

__all__ = ["PartsSource"]

_SCRATCH = ".parts"
_ENDING = re.compile(r"[.-]part[.-]?\d+\Z", re.IGNORECASE)


class PartsSource:
    """The parts are fetched one by one and then joined; a pull that is killed leaves none of it."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    @property
    def name(self) -> str:
        return _ENDING.sub("", self._sources[0].name).removesuffix(".gguf")

    def fetch(self, target: Path, progress: Progress, /) -> Fetched:
        scratch = target / _SCRATCH
        origins, parts = [], []
        try:
            for number, source in enumerate(self._sources):
                folder = scratch / str(number)
                folder.mkdir(parents=True)
                fetched = source.fetch(folder, progress)
                if len(fetched.files) != 1:
                    raise InvalidInput(f"{fetched.source}: expected one file to join, got {len(fetched.files)}")
                origins.append(fetched.source)
                parts.append(folder / fetched.files[0].path)
            name = _ENDING.sub("", parts[0].name)
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(open_regular(part)) for part in parts]
                total = sum(os.fstat(file.fileno()).st_size for file in files)
                step = stack.enter_context(progress.step(f"joining {len(parts)} parts of {name}", total))
                entry = copy_stream(_Chain(files), target, name, total, step)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return Fetched(" + ".join(origins), [entry])


class _Chain:
    """Several files read as one."""

    def __init__(self, files: Sequence[BinaryIO]) -> None:
        self._left = list(files)

    def read(self, size_bytes: int, /) -> bytes:
        while self._left:
            if chunk := self._left[0].read(size_bytes):
                return chunk
            del self._left[0]
        return b""
