"""User code from a folder: a directory and a "module:attribute" in, the attribute and a way to unload it out.

Every load gets a private package of its own, so two versions of one file live side by side; `sys.path` is untouched,
no byte code is written next to the user's files, and siblings are reached with `from .sibling import x`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import ConfigError

__all__ = ["UserCode", "public_module", "split_entry"]

_PRIVATE = "_headrace_user_"


def split_entry(entry: str) -> tuple[str, str]:
    """Split "module:attribute" (both may be dotted). Raises `ConfigError` for anything else."""
    module, colon, attribute = entry.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise ConfigError(f'expected "module:attribute", got {entry!r}')
    return module, attribute


def public_module(name: str) -> str:
    """A module's name as its user knows it: without the private package that holds it."""
    return name.partition(".")[2] if name.startswith(_PRIVATE) else name


class UserCode:
    """The modules of one folder, loaded privately. `close` forgets them; objects already handed out keep working."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._finder: _Finder | None = None

    def has(self, module: str) -> bool:
        """Whether the folder holds the first part of a dotted module name, as a file or as a package."""
        first = module.split(".")[0]
        return (self.directory / f"{first}.py").is_file() or (self.directory / first / "__init__.py").is_file()

    def modules(self) -> list[str]:
        """Names of the modules and packages that lie in the folder, sorted."""
        files = [path.stem for path in self.directory.glob("*.py")]
        return sorted([*files, *(path.parent.name for path in self.directory.glob("*/__init__.py"))])

    def load(self, entry: str) -> Any:
        """Import "module:attribute" from the folder.

        Raises `ConfigError` naming what is missing; an error raised by the module's own code passes through.
        """
        module_name, attribute = split_entry(entry)
        if not self.has(module_name):
            have = ", ".join(sorted(path.name for path in self.directory.glob("*.py"))) or "no Python file"
            raise ConfigError(f"{self.directory}: no module {module_name!r} for {entry!r}; the folder has {have}")
        if self._finder is None:
            self._finder = _Finder(self.directory)
            package = ModuleType(self._finder.package, f"User code from {self.directory}")
            package.__path__ = []
            sys.modules[self._finder.package] = package
            sys.meta_path.insert(0, self._finder)
        value: Any = importlib.import_module(f"{self._finder.package}.{module_name}")
        for part in attribute.split("."):
            try:
                value = getattr(value, part)
            except AttributeError:
                raise ConfigError(f"{self.directory / module_name}.py: no attribute {attribute!r}") from None
        return value

    def close(self) -> None:
        """Remove every trace from the interpreter's import state; safe to call more than once."""
        finder, self._finder = self._finder, None
        if finder is None:
            return
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n == finder.package or n.startswith(finder.package + ".")]:
            del sys.modules[name]


class _Loader(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: str) -> Any:
        raise OSError("no byte code cache: the folder is read-only to us, and an edit must take effect at once")


class _Finder:
    """Meta-path finder for one private package: looks only in its folder, and only for names below its package."""

    def __init__(self, directory: Path) -> None:
        self.package = f"{_PRIVATE}{id(self):x}"
        self._prefix = self.package + "."
        self._directory = directory

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self._prefix):
            return None
        stem = self._directory.joinpath(*name.removeprefix(self._prefix).split("."))
        for file in (stem / "__init__.py", stem.with_name(stem.name + ".py")):
            if file.is_file():
                locations: list[str] | None = [] if file.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(
                    name, file, loader=_Loader(name, str(file)), submodule_search_locations=locations
                )
        return None
