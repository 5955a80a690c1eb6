"""Which model a command means: in flows a path or a name in the repository, out comes what `open_checkpoint` opens."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import HeadraceError, InvalidInput, NotFound
from headrace.store.config import language_model, named_file
from headrace.store.names import CONFIG

__all__ = ["MODEL_HELP", "model_file"]

MODEL_HELP = "A GGUF file, a folder with config.json and safetensors, or NAME[:VERSION] in the model repository."


def model_file(model: str | Path, repo: Path | None = None) -> Path:
    """The GGUF file or Hugging Face folder that `model` names: itself if such a path exists, else in the repository.

    Args:
        model: A path, or NAME, NAME:VERSION or NAME@VERSION of the repository.
        repo: The repository; default: `$HEADRACE_REPO`, else `./models`.

    Raises `NotFound` saying what there is instead, `InvalidInput` if the place holds no language model or several.
    """
    from headrace.store.versions import ModelStore, default_root

    path = Path(model).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        return _inside(path, "")
    store = ModelStore(repo or default_root())
    if str(model).endswith((".gguf", ".safetensors")) or str(model).count("/"):
        raise NotFound(f"no such file or folder: {path}")
    try:
        folder = store.resolve(str(model))
    except HeadraceError as error:
        raise NotFound(f"{model!r} is no file or folder, and in the repository: {error}") from error
    config = folder.parent / CONFIG
    return _inside(folder.resolve(), named_file(config.read_bytes()) if config.is_file() else "")


def _inside(folder: Path, file: str) -> Path:
    if file and (folder / file).is_file():
        return folder / file
    paths = sorted(path.name for path in folder.iterdir() if path.is_file())
    if not (found := language_model(paths)):
        have = ", ".join(paths[:10]) or "no files"
        raise InvalidInput(f"{folder}: expected one GGUF file, or config.json and safetensors; it holds: {have}")
    return folder / found
