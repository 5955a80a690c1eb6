"""The public surface is what `__all__` says, no more and no less, and it changes only on purpose."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import headrace

UPDATE = "HEADRACE_UPDATE_EXPORTS"


def _public_modules() -> list[str]:
    found = pkgutil.walk_packages(headrace.__path__, "headrace.", onerror=lambda _: None)
    names = ["headrace", *(module.name for module in found)]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


MODULES = _public_modules()


def _own(module: ModuleType) -> set[str]:
    """Public functions and classes written in the module itself."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


def _order(name: str) -> tuple[int, list[str | int]]:
    """Constants, then classes, then the rest; numbers within names by value (the order ruff's RUF022 keeps)."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_what_the_module_defines(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        assert not _own(module), f"{name} defines {sorted(_own(module))} but has no __all__"
        return
    assert [entry for entry in exported if not hasattr(module, entry)] == [], f"{name}.__all__ names what is not there"
    assert list(exported) == sorted(set(exported), key=_order), f"{name}.__all__ is not sorted or repeats a name"


def test_modules_take_from_each_other_only_what_is_exported(checkout: Path) -> None:
    """What `__all__` leaves out is a module's own business, and stays so inside the package too."""
    taken = []
    for path in sorted((checkout / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("headrace"):
                continue
            module = importlib.import_module(str(node.module))
            if hasattr(module, "__path__"):
                for alias in node.names:
                    if importlib.util.find_spec(f"{node.module}.{alias.name}"):
                        importlib.import_module(f"{node.module}.{alias.name}")
            public = {*getattr(module, "__all__", ()), *(n for n, v in vars(module).items() if inspect.ismodule(v))}
            taken += [
                f"{path.relative_to(checkout)}: {node.module}.{a.name}" for a in node.names if a.name not in public
            ]
    assert [line for line in taken if "headrace._native._ext" not in line] == [], "add these names to __all__"


def _parameters(value: object) -> str:
    """`(a, *, b=)`: the names by which a caller may pass arguments, or "" where Python knows no signature."""
    try:
        parameters = list(inspect.signature(value).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    if [p.kind for p in parameters] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
        return ""
    plain = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else ...) for p in parameters]
    return str(inspect.Signature(plain)).replace("Ellipsis", "")


def _surface() -> list[str]:
    lines = []
    for name in MODULES:
        module = importlib.import_module(name)
        for entry in getattr(module, "__all__", ()):
            value = getattr(module, entry)
            called = inspect.isclass(value) or inspect.isfunction(value)
            shown = _parameters(value) if called and not name.startswith("headrace.cli") else ""
            lines.append(f"{name}.{entry}{shown}")
    return sorted(lines)


def test_the_public_surface_changes_only_on_purpose(checkout: Path) -> None:
    golden = checkout / "tests" / "golden" / "exports.txt"
    surface = _surface()
    if os.environ.get(UPDATE):
        golden.write_text("\n".join(surface) + "\n", "utf-8")
    known = golden.read_text("utf-8").splitlines()
    added = [f"+ {line}" for line in surface if line not in known]
    gone = [f"- {line}" for line in known if line not in surface]
    assert not added + gone, "\n".join(
        [
            "the public surface changed; if that is meant, note it in CHANGELOG.md and run",
            "",
            f"  {UPDATE}=1 .venv/bin/pytest tests/test_exports.py",
            "",
            *gone,
            *added,
        ]
    )
