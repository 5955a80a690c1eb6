"""The documentation is true: its links lead somewhere, its commands and options exist, its examples run or parse."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import typer.main

from headrace.cli import app
from headrace.serve.config import ModelConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
RUNNABLE = "<!-- runnable -->"


class Block(NamedTuple):
    """One fenced block: its page and first line, language, text, and whether it is marked runnable."""

    page: Path
    line: int
    language: str
    text: str
    runnable: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text("utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = re.fullmatch(r"( *)```(\w*)[^`]*", lines[number])
        if not opening:
            number += 1
            continue
        indent, start = len(opening[1]), number
        above = next((line.strip() for line in reversed(lines[:start]) if line.strip()), "")
        number += 1
        while number < len(lines) and lines[number].strip() != "```":
            number += 1
        assert number < len(lines), f"{page.name}:{start + 1}: this block is never closed"
        text = "\n".join(line[indent:] for line in lines[start + 1 : number])
        yield Block(page, start + 1, opening[2], text, above == RUNNABLE)
        number += 1


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def _of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def _prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The ids that the site gives to a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", _prose(page), flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading))
        found.add(
            re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower())
        )
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and anchor not in _anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("block", _of("python"), ids=str)
def test_python_blocks_import_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text, str(block))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "headrace"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "headrace":
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert missing == [], f"{block}: {node.module} has no {missing}"
        for name in names:
            importlib.import_module(name)


@pytest.mark.parametrize("block", [block for block in _of("python") if block.runnable], ids=str)
def test_runnable_blocks_run(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.text, "utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("block", _of("toml"), ids=str)
def test_toml_blocks_are_valid(block: Block) -> None:
    settings = tomllib.loads(block.text)
    if "backend" in settings or "stage" in settings:
        msgspec.convert(settings, ModelConfig)


@pytest.mark.parametrize("block", _of("json"), ids=str)
def test_json_blocks_parse(block: Block) -> None:
    json.loads(block.text)


def _shell_lines() -> Iterator[tuple[str, str]]:
    """(where, command) of every `headrace …` line in a shell block, continuation lines joined."""
    for block in _of("bash", "sh", "console", "shell"):
        for line in block.text.replace("\\\n", " ").splitlines():
            command = re.search(r"(?:^|[|&;]\s*|\$ )((?:\S*/)?headrace(?: .*)?)$", line.strip())
            if command and not line.lstrip().startswith("#"):
                yield f"{block}", command[1]
    for page in PAGES:
        for span in re.findall(r"`(headrace [a-z][^`]*)`", _prose(page)):
            yield str(page.relative_to(ROOT)), span


def _unknown(words: list[str]) -> str:
    """What in the words after `headrace` names no command or option, or ""."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if word in {"--help", "…", "..."}:
            continue
        if word.startswith("--"):
            options = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
            if word.split("=")[0] not in options | {"--install-completion", "--show-completion"}:
                return word
        elif getattr(command, "commands", None) is not None:
            if word not in command.commands:
                return word
            command = command.commands[word]
    return ""


def test_commands_in_the_documentation_exist() -> None:
    wrong = []
    for where, line in _shell_lines():
        words = shlex.split(re.split(r"\s(?:&&|\||&|>|;|#)", line)[0], comments=True)
        if odd := _unknown(words[1:]):
            wrong.append(f"{where}: {line!r}: {odd} is unknown")
    assert wrong == []


def test_make_targets_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    named = {
        word for page in PAGES for word in re.findall(r"(?:`|^\s*)make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert named <= targets


def _packages() -> list[str]:
    """Every package under src/headrace that holds code, as `serve/codec`."""
    source = ROOT / "src" / "headrace"
    inits = sorted(source.rglob("__init__.py"))
    return [init.parent.relative_to(source).as_posix() for init in inits if init.parent != source]


def test_structure_names_every_package_and_only_what_exists() -> None:
    page = (ROOT / "docs" / "structure.md").read_text("utf-8")
    spans = set(re.findall(r"`([^`\s]+)`", page))
    missing = [package for package in _packages() if f"{package}/" not in spans]
    assert missing == [], "docs/structure.md has one line for each package, written as `package/`"
    paths = {span for span in spans if re.fullmatch(r"[\w./-]+/[\w.-]*|[\w-]+\.(?:py|cpp|hpp)", span)}
    gone = sorted(
        path for path in paths if not any((base / path).exists() for base in (ROOT, ROOT / "src" / "headrace"))
    )
    assert gone == [], "docs/structure.md names what is not there"


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    absent = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert [name for name in absent if f" {name}" not in menu] == [], "add the page to `nav` in mkdocs.yml"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "site" / "structure" / "index.html").is_file()
