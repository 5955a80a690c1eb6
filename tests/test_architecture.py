"""The shape of the house: imports point down, only `core` touches the compiled part, files stay one noun long."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

MAX_LINES = {".py": 320, ".cpp": 520, ".hpp": 520}

# path -> why it may be longer than its kind allows.
LONG_FILES: dict[str, str] = {}

# Packages that may import `headrace._native`.
NATIVE_USERS = (
    "headrace.core",
    "headrace._native",
    "headrace.llm.kernels",
    "headrace.llm.sampler",
    "headrace.rl.buffers",
    "headrace.rl.envs",
    "headrace.rl.learners",
    "headrace.rl.policy",
    "headrace.rl.returns",
    "headrace.rl.rollout",
)

# What `core` may import beside the standard library and itself.
CORE_MAY_IMPORT = {"headrace", "numpy", "msgspec", "prometheus_client", "opentelemetry"}

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, module: str) -> set[str]:
    """Every module that the file names in an import statement, at any depth of nesting."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
    return found


@pytest.fixture(scope="module")
def sources(checkout: Path) -> dict[str, set[str]]:
    """module name -> what it imports."""
    paths = sorted((checkout / "src").rglob("*.py"))
    names = [(path, _module_name(path.relative_to(checkout))) for path in paths]
    return {name: _imports(path, name) for path, name in names}


def test_imports_point_down(checkout: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    report = subprocess.run([linter, "--no-cache"], cwd=checkout, capture_output=True, text=True, check=False)
    assert report.returncode == 0, report.stdout + report.stderr


def test_only_core_touches_the_compiled_part(sources: dict[str, set[str]]) -> None:
    users = {
        module
        for module, imports in sources.items()
        if any(name == "headrace._native" or name.startswith("headrace._native.") for name in imports)
    }
    strangers = {user for user in users if not any(user == ok or user.startswith(f"{ok}.") for ok in NATIVE_USERS)}
    assert not strangers, f"only {NATIVE_USERS} may import headrace._native, not {sorted(strangers)}"
    assert "headrace._native" in users, "the check found no import of the extension at all"


def test_core_needs_no_framework(sources: dict[str, set[str]]) -> None:
    allowed = CORE_MAY_IMPORT | sys.stdlib_module_names
    foreign = {
        module: sorted(name for name in imports if name.split(".")[0] not in allowed)
        for module, imports in sources.items()
        if module == "headrace.core" or module.startswith("headrace.core.")
    }
    assert {module: names for module, names in foreign.items() if names} == {}


def test_files_stay_one_noun_long(checkout: Path, tracked: list[Path]) -> None:
    lengths = {
        name.as_posix(): (checkout / name).read_text("utf-8").count("\n")
        for name in tracked
        if name.suffix in MAX_LINES and name.parts[0] != "third_party"
    }
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES[Path(name).suffix]}
    assert {name: lines for name, lines in long.items() if name not in LONG_FILES} == {}
    assert set(LONG_FILES) <= set(long), "an entry of LONG_FILES is no longer needed"


def test_nothing_is_left_for_later(checkout: Path, tracked: list[Path]) -> None:
    marks = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked
        if name.parts[0] in {"src", "native"} and name.suffix != ".wasm"
        for number, line in enumerate((checkout / name).read_text("utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert marks == []


def test_every_module_says_what_flows(checkout: Path) -> None:
    silent = [
        str(path.relative_to(checkout))
        for path in sorted((checkout / "src").rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == [], "open each module with what flows in and out of it"
