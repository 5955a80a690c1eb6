"""The house keeps its own promises: targets, hooks, licences, and no trace of the machine that wrote a file."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

TARGETS = ("demo", "test", "lint", "fmt", "bench", "docs", "clean", "help")


@pytest.fixture(scope="module")
def makefile(checkout: Path) -> str:
    return (checkout / "Makefile").read_text("utf-8")


def _recipe(makefile: str, target: str) -> list[str]:
    """The command lines of one target, continuation lines joined."""
    found = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n?|[^\n]*(?<=\\)\n)+)", makefile, flags=re.MULTILINE)
    assert found, f"no target {target}"
    return [line.strip().lstrip("@") for line in found[1].replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_stands_and_is_described(target: str, makefile: str, checkout: Path) -> None:
    assert re.search(rf"^{target}:.*  ## \S", makefile, flags=re.MULTILINE), f"describe {target} after ##"
    if shutil.which("make"):
        dry = subprocess.run(["make", "-n", target], cwd=checkout, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr


def test_ci_runs_the_documented_commands(checkout: Path) -> None:
    script = (checkout / ".ci" / "run").read_text("utf-8")
    assert "set -euo pipefail" in script
    assert script.rstrip().splitlines()[-2:] == ["make lint", "make test"]
    readme = (checkout / "README.md").read_text("utf-8")
    assert "make demo" in readme
    assert "make test" in readme


def test_the_hooks_are_the_lint_commands(checkout: Path, makefile: str) -> None:
    settings = yaml.safe_load((checkout / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [repo["repo"] for repo in settings["repos"]] == ["local"], "a remote hook would be fetched at every start"
    hooks = [hook["entry"] for repo in settings["repos"] for hook in repo["hooks"]]
    assert hooks == _recipe(makefile, "lint")


def _dependencies(checkout: Path) -> set[str]:
    project: dict[str, Any] = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))
    groups = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
    ]
    names = {re.match(r"[\w.-]+", entry)[0].lower() for group in groups for entry in group}  # type: ignore[index]
    return names - {"headrace"}


def _listed(checkout: Path) -> dict[str, str]:
    """package -> licence, from the tables of the page."""
    rows = {}
    for line in (checkout / "docs" / "licences.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) >= 3 and cells[0] not in {"package", "recipe"}:
            rows[cells[0]] = cells[2]
    return rows


def test_every_dependency_has_its_licence_listed(checkout: Path) -> None:
    listed = _listed(checkout)
    assert _dependencies(checkout) - set(listed) == set(), "list the licence in docs/licences.md"
    for name in _dependencies(checkout):
        try:
            stated = metadata(name).get("License-Expression")
        except PackageNotFoundError:
            continue
        assert stated in {None, listed[name]}, f"{name} states the licence {stated}"


def test_every_model_recipe_has_its_licence_listed(checkout: Path) -> None:
    page = (checkout / "docs" / "licences.md").read_text("utf-8")
    recipes = sorted((checkout / "src" / "headrace" / "store" / "recipes").glob("*/recipe.toml"))
    assert recipes
    for recipe in recipes:
        assert f"| `{recipe.parent.name}` |" in page
        for package, version in re.findall(r"pypi://([\w.-]+)==([\w.]+)/", recipe.read_text("utf-8")):
            assert f"{package} {version}" in page, f"{recipe.parent.name} takes {package} {version}"


TRACES = re.compile(
    "|".join(
        [
            r"--(extra-)?index-url",
            r"registry=http",
            r"/root/\.",
            r"/home/[a-z]+/",
        ]
    )
)


def test_no_file_names_a_machine_or_a_registry(checkout: Path, tracked: list[Path]) -> None:
    here = f"{checkout}/"
    found = []
    for name in tracked:
        try:
            text = (checkout / name).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if name == Path("tests/test_house.py"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if here in line or TRACES.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


def test_the_changelog_has_a_place_for_what_comes_next(checkout: Path) -> None:
    text = (checkout / "CHANGELOG.md").read_text("utf-8")
    version = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    headings = re.findall(r"^## \[([^]]+)\]", text, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert version in headings or version == "0.1.0", f"version {version} has no entry"
