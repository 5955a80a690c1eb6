"""One language model as a repository: its file or folder in, a folder to serve it from out, gone with the block."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import InvalidInput
from headrace.serve.versions import names_in
from headrace.store.config import language_model
from headrace.store.names import CONFIG, suggest_model

__all__ = ["bare_model", "bare_repository"]

_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf\Z")


def bare_model(path: Path) -> Path | None:
    """The model that `path` is, or that it holds while it is no repository; None for what is to be served as one.

    Raises `NotFound` where nothing is, `ConfigError` for the folder of one model of a repository.
    """
    if path.is_file():
        return path
    if names_in(path):
        return None
    found = language_model([file.name for file in path.iterdir() if file.is_file()])
    return path / found if found else None


@contextmanager
def bare_repository(model: Path) -> Iterator[Path]:
    """A repository whose one model, named after its file or folder, is `model`; nothing is copied.

    Raises `InvalidInput` for a file that is no GGUF file by its name.
    """
    whole = model.absolute()
    if whole.is_dir():
        stem, parts = f"{whole.name}.folder", [file for file in whole.iterdir() if file.is_file()]
    elif whole.suffix != ".gguf":
        raise InvalidInput(f"{model}: expected a folder of models, or a GGUF file (*.gguf)")
    else:
        stem, parts = _SPLIT.sub(".gguf", whole.name), [whole]
        if _SPLIT.search(whole.name):
            parts = sorted(whole.parent.glob(f"{_glob(_SPLIT.sub('', whole.name))}-?????-of-?????.gguf"))
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        version = Path(folder) / suggest_model(stem, whole.parent.name) / "1"
        version.mkdir(parents=True)
        (version.parent / CONFIG).write_text('backend = "llm"\n', "utf-8")
        for part in parts:
            (version / part.name).symlink_to(part)
        yield Path(folder)


def _glob(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
