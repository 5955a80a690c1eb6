"""Which model a command means: in flows a path or a name in the repository, out comes what `open_checkpoint` opens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, InvalidInput, NotFound
from headrace.store.config import language_model, named_file
from headrace.store.names import CONFIG

if TYPE_CHECKING:
    from headrace.store.versions import ModelStore

__all__ = ["MODEL_HELP", "located", "model_file"]

MODEL_HELP = "A GGUF file, a folder with config.json and safetensors, or NAME[:VERSION] in the model repository."


def model_file(model: str | Path, repo: Path | None = None) -> Path:
    """The GGUF file or Hugging Face folder that `model` names: itself if such a path exists, else in the repository.

    Args:
        model: A path, or NAME, NAME:VERSION or NAME@VERSION of the repository.
        repo: The repository; default: `$HEADRACE_REPO`, else `./models`.

    Raises `NotFound` saying what there is instead, `InvalidInput` if the place holds no language model or several, or
    cannot be looked at.
    """
    return located(model, repo)[0]


def located(model: str | Path, repo: Path | None = None) -> tuple[Path, Path | None]:
    """`model_file`, and where it comes from the repository its `headrace.toml`, if it has one."""
    from headrace.store.versions import ModelStore, default_root

    path = Path(model).expanduser()
    try:
        if path.is_file():
            return path, None
        if path.is_dir():
            return _inside(path, ""), None
        if path.exists():
            raise InvalidInput(f"{path}: expected a file or a folder; it is neither")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None
    if str(model).endswith((".gguf", ".safetensors")) or str(model).count("/"):
        raise NotFound(f"no such file or folder: {path}")
    store = ModelStore(repo or default_root())
    try:
        folder = store.resolve(str(model))
    except HeadraceError as error:
        if str(model) in store.names() and store.info(str(model)).kind == "pipeline":
            told = f"{model!r} is a pipeline, not a language model; it is run by: headrace infer {model} FILE"
            raise InvalidInput(told) from None
        raise NotFound(
            f"{model!r} is no file or folder, and in the repository: {error}{_hint(model, store)}"
        ) from error
    config = folder.parent / CONFIG
    if not config.is_file():
        return _inside(folder.resolve(), ""), None
    return _inside(folder.resolve(), named_file(config.read_bytes())), config


def _hint(model: str | Path, store: ModelStore) -> str:
    """What was meant, how to get it, or where else it may be."""
    from difflib import get_close_matches

    from headrace.store.recipe import recipe_names

    name, known = str(model).partition(":")[0].partition("@")[0], store.names()
    if name in known:
        return ""
    if near := get_close_matches(name, known, 1):
        return f"; did you mean {near[0]!r}?"
    if meant := get_close_matches(name, recipe_names(), 1):
        return f"; get it with: headrace pull {meant[0]}, or name another repository by --repo or HEADRACE_REPO"
    return "; another repository is named by --repo or HEADRACE_REPO"


def _inside(folder: Path, file: str) -> Path:
    if file and (folder / file).is_file():
        return folder / file
    paths = sorted(path.name for path in folder.iterdir() if path.is_file())
    if not (found := language_model(paths)):
        have = ", ".join(paths[:10]) or "no files"
        raise InvalidInput(f"{folder}: expected one GGUF file, or config.json and safetensors; it holds: {have}")
    return folder / found
