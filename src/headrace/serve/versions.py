"""Which version of a model is served: a repository folder and a name in, the version folder to load out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import LoadFailed
from headrace.store.names import MANIFEST
from headrace.store.verify import verify
from headrace.store.versions import ModelStore

__all__ = ["Chosen", "choose_version"]


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
        return Chosen(version, directory, remark=f"not verified: version {version!r} has no manifest")
    return Chosen(version, directory, manifest=True)


def _order(version: str) -> tuple[bool, int, str]:
    """Numbers by value, before them anything else by name."""
    return (True, int(version), "") if version.isdecimal() else (False, 0, version)
