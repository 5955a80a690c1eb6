"""What a repository folder holds, and which version of it is served: names out; a name in, the folder to load out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError, LoadFailed, NotFound
from headrace.store.names import CONFIG, MANIFEST
from headrace.store.verify import verify
from headrace.store.versions import ModelStore

__all__ = ["Chosen", "choose_version", "names_in"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A version to load.

    Attributes:
        directory: Where its files lie.
        manifest: Whether it has one, so that it can be verified.
        remark: What an operator should know of it ("not verified: …"), or "".
    """

    version: str
    directory: Path
    manifest: bool = False
    remark: str = ""

    def check(self) -> None:
        """Read and hash every file the manifest names. Raises `IntegrityError`; does nothing without a manifest."""
        if self.manifest:
            verify(self.directory)


def choose_version(root: Path, name: str, *, pipeline: bool = False) -> Chosen:
    """The version `current` points to, which must have a manifest; without one, the highest version folder, with
    or without a manifest. A pipeline's files lie beside its `headrace.toml` and have no versions.

    Nothing is hashed yet: see `Chosen.check`. Raises `NotFound`, and `LoadFailed` for a model without a version.
    """
    store = ModelStore(root)
    current = store.current(name)
    if pipeline:
        return Chosen(current or "1", root / name)
    version = current or max(store.versions(name), key=_order, default="")
    if not version:
        raise LoadFailed(f"model {name!r}: {root / name} has no version folder")
    directory = root / name / version
    if not current and not (directory / MANIFEST).exists():
        return Chosen(version, directory, remark="not verified: it has no manifest")
    return Chosen(version, directory, manifest=True)


def names_in(root: Path) -> list[str]:
    """Names of the models and pipelines that a folder holds, sorted; versions without a `headrace.toml` are a name too,
    so that somebody is told.

    Raises `NotFound` when it is no folder, `ConfigError` when it is the folder of one model.
    """
    if not root.is_dir():
        raise NotFound(f"{root}: no such file or folder; expected a folder of models")
    configured = {path.parent.name for path in root.glob(f"*/{CONFIG}") if path.parent.name[0] != "."}
    if not configured and (root / CONFIG).is_file():
        above = root.parent if root.name else root.resolve().parent
        raise ConfigError(
            f"{root} is one model or pipeline, not a repository of them; give the folder above it: {above}"
        )
    return sorted(configured.union(ModelStore(root).names()))


def _order(version: str) -> tuple[bool, int, str]:
    """Numbers by value, before them anything else by name."""
    return (True, int(version), "") if version.isdecimal() else (False, 0, version)
