"""One model file as a repository: the path of a GGUF file in, a folder to serve it from out, gone with the block."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import InvalidInput
from headrace.store.names import CONFIG, suggest_model

__all__ = ["bare_repository"]

_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf\Z")


@contextmanager
def bare_repository(file: Path) -> Iterator[Path]:
    """A repository whose one model, named after the file, is `file`; nothing is copied.

    Raises `InvalidInput` for what is no GGUF file by its name.
    """
    if file.suffix != ".gguf":
        raise InvalidInput(f"{file}: expected a folder of models, or a GGUF file (*.gguf)")
    whole = file.absolute()
    parts = sorted(whole.parent.glob(f"{_glob(_SPLIT.sub('', whole.name))}-?????-of-?????.gguf"))
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        name = suggest_model(_SPLIT.sub(".gguf", whole.name), whole.parent.name)
        version = Path(folder) / name / "1"
        version.mkdir(parents=True)
        (version.parent / CONFIG).write_text('backend = "llm"\n', "utf-8")
        for part in parts if _SPLIT.search(whole.name) else [whole]:
            (version / part.name).symlink_to(part)
        yield Path(folder)


def _glob(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
