"""Every command explains itself: help with examples, a line for each option, and a refusal of what it does not know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from headrace.cli import app

PLAIN = {"COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1"}


def _commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, command in sorted(getattr(group, "commands", {}).items()):
        inner = _commands(command, (*path, name))
        if not inner or getattr(command, "invoke_without_command", False):
            found.append(((*path, name), command))
        found.extend(inner)
    return found


COMMANDS = _commands(typer.main.get_command(app))


def _run(*args: str) -> Any:
    return CliRunner().invoke(app, list(args), env=PLAIN, prog_name="headrace")


def test_the_root_lists_every_command() -> None:
    result = _run("--help")
    assert result.exit_code == 0
    assert COMMANDS, "no command is registered"
    for path, _ in COMMANDS:
        assert re.search(rf"\b{re.escape(path[0])}\b", result.output), f"{path[0]} is missing from headrace --help"


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_help_says_what_and_shows_how(path: tuple[str, ...], command: Any) -> None:
    result = _run(*path, "--help")
    assert result.exit_code == 0, result.output
    assert (command.help or "").strip(), "say in one line what the command does"
    assert re.search(r"\bExamples?\b", result.output), "show how the command is called"
    assert f"headrace {' '.join(path)}" in result.output, "an example should call the command by its full name"
    silent = [
        parameter.name
        for parameter in command.params
        if parameter.param_type_name == "option" and not (getattr(parameter, "help", None) or parameter.hidden)
    ]
    assert silent == [], "every option says what it does"


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_a_narrow_terminal_shows_the_names_of_all_options(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], env={**PLAIN, "COLUMNS": "80"}, prog_name="headrace")
    assert re.findall(r"--[\w-]*…", result.output) == []


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_unknown_options_are_refused(path: tuple[str, ...]) -> None:
    result = _run(*path, "--no-such-option")
    assert result.exit_code == 2
    assert "--no-such-option" in result.output


def test_unknown_commands_are_refused() -> None:
    result = _run("no-such-command")
    assert result.exit_code == 2
    assert "no-such-command" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_can_be_shown(shell: str) -> None:
    environment = {**os.environ, **PLAIN, "_HEADRACE_COMPLETE": f"source_{shell}"}
    run = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "headrace")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "_HEADRACE_COMPLETE" in run.stdout
    root = _run("--help").output
    assert "--show-completion" in root
    assert "--install-completion" in root
