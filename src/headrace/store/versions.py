"""The model repository on disk: in flow model names, out come versions, the current one, and the right to change them.

    <root>/<name>/headrace.toml            how it is served; a folder with nothing else is a pipeline
    <root>/<name>/<version>/…              the files of a version and its manifest.json; never changed once there
    <root>/<name>/current -> <version>     switched by renaming a new link over the old one
    <root>/.locks/<name>                   held by whoever changes the model

Reading takes no lock: every change is a rename, so a reader sees the state before it or after it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import ConfigError, HeadraceError, NotFound
from headrace.store.edit import Edit
from headrace.store.lock import locked
from headrace.store.manifest import read_manifest
from headrace.store.names import CONFIG, MANIFEST, check_model, split_reference
from headrace.store.verify import verify, walk_files

__all__ = ["ModelInfo", "ModelStore", "default_root"]


class ModelInfo(msgspec.Struct, frozen=True):
    """One model or pipeline. `current`, `digest` and `source` are "" where there is no (readable) current version."""

    name: str
    kind: Literal["model", "pipeline"]
    current: str
    versions: list[str]
    size_bytes: int
    digest: str
    source: str


def default_root() -> Path:
    """`$HEADRACE_REPO`, else `./models`."""
    return Path(os.environ.get("HEADRACE_REPO") or "models")


class ModelStore:
    """A folder of models; see the module for its layout. Holds no state but the path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Models and pipelines that are there, sorted."""
        if not self.root.is_dir():
            return []
        found = []
        for folder in self.root.iterdir():
            with contextlib.suppress(HeadraceError):
                if folder.is_dir() and ((folder / CONFIG).is_file() or Edit(self.root, folder.name).versions()):
                    found.append(check_model(folder.name))
        return sorted(found)

    def versions(self, name: str) -> list[str]:
        """Version names of a model, sorted; raises `NotFound` if there is no such model."""
        return self._existing(name).versions()

    def current(self, name: str) -> str:
        """The current version, or "" if there is none; raises `NotFound`, or `ConfigError` if the link leads out."""
        return self._existing(name).current()

    def resolve(self, reference: str) -> Path:
        """The version folder of `name` (its current version), `name:version` or `name@version`.

        Raises `NotFound` saying what there is instead. The folder is not verified here: see `headrace.store.verify`.
        """
        name, version = split_reference(reference)
        model = self._existing(name)
        if not version and not (version := model.current()):
            raise NotFound(f"model {name!r} has no current version; it has: {', '.join(model.versions()) or 'none'}")
        return model.version_dir(version)

    def info(self, name: str) -> ModelInfo:
        """Facts about one model, taken from the manifest of its current version (whose files are not read)."""
        model = self._existing(name)
        versions, current = model.versions(), model.current()
        size_bytes, digest, source = 0, "", ""
        if current:
            with contextlib.suppress(HeadraceError):
                manifest = read_manifest(model.version_dir(current))
                size_bytes, digest, source = manifest.size_bytes, manifest.digest, manifest.source
        return ModelInfo(name, "model" if versions else "pipeline", current, versions, size_bytes, digest, source)

    @contextlib.contextmanager
    def edit(
        self, name: str, *, wait_s: float = float("inf"), say: Callable[[str], None] = lambda _: None
    ) -> Iterator[Edit]:
        """The right to change one model, until the block ends; what a killed holder left behind is swept first.

        `say` is told who holds the model while it waits; raises `Conflict` after `wait_s` seconds. A failing file
        system (disk full, no permission) raises `HeadraceError`.
        """
        check_model(name)
        try:
            is_new = False
            if not stat.S_ISDIR(self.root.stat().st_mode):
                raise ConfigError(f"model repository {self.root}: expected a folder")
        except FileNotFoundError:
            is_new = True
        model = Edit(self.root, name)
        try:
            with locked(self.root / ".locks" / name, f"model {name!r}", wait_s=wait_s, say=say):
                model.sweep()
                try:
                    yield model
                finally:
                    model.discard_if_empty()
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise HeadraceError(f"cannot change model {name!r} in {self.root}: {error.strerror}{where}") from error
        finally:
            with contextlib.suppress(OSError):  # a failed first pull leaves nothing, not even an empty folder
                (self.root / ".locks").rmdir()
                if is_new:
                    self.root.rmdir()

    def check(self, name: str, *, read_files: bool = True) -> None:
        """Whether the current version is sound and its `headrace.toml` fits it; `read_files` off asks only the latter.

        Raises `NotFound`, `IntegrityError`, or `ConfigError` if the `headrace.toml` names a file that is not there.
        """
        folder = self.resolve(name)
        if read_files:
            verify(folder)
        paths = [path for path, _ in walk_files(folder.resolve()) if path != MANIFEST]
        self._existing(name).check_config(paths)

    def switch(self, name: str, version: str) -> None:
        """Verify a version and make it current, in one step for every reader.

        Raises `NotFound`, `IntegrityError`, or `ConfigError` if the `headrace.toml` names a file that it lacks.
        """
        self._existing(name)
        with self.edit(name) as model:
            model.switch(version)

    def remove(self, name: str, version: str = "", *, force: bool = False) -> None:
        """Delete one version, or the model with all of them; raises `Conflict` for the current one unless `force`."""
        self._existing(name)
        with self.edit(name) as model:
            model.remove(version, force=force)

    def _existing(self, name: str) -> Edit:
        if not (self.root / check_model(name)).is_dir():
            known = ", ".join(self.names()) or "none"
            raise NotFound(f"no model {name!r} in {self.root}; there are: {known}")
        return Edit(self.root, name)
