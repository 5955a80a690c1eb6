"""The type hints are part of the interface: right use passes mypy as a user runs it, wrong use is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def _mypy(checkout: Path, *files: str) -> str:
    """What `mypy --strict` says of the files, with the package's sources where an installed package would be."""
    command = [sys.executable, "-m", "mypy", "--strict", "--show-error-codes", "--no-error-summary", "--config-file="]
    run = subprocess.run(
        [*command, "--cache-dir", str(checkout / ".mypy_cache" / "user"), *(str(HERE / name) for name in files)],
        cwd=checkout,
        env={**os.environ, "MYPYPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.stdout


def _reported(report: str, file: str) -> list[tuple[int, str]]:
    """(line, code) of every error that the report has on `file`."""
    lines = re.findall(rf"{re.escape(file)}:(\d+): error: .*\[([a-z-]+)\]$", report, flags=re.MULTILINE)
    return [(int(number), code) for number, code in lines]


def test_right_use_passes_and_wrong_use_is_refused(checkout: Path) -> None:
    report = _mypy(checkout, "public_api.py", "misuse.py")
    right = [line for line in report.splitlines() if "public_api.py" in line]
    assert right == []
    lines = (HERE / "misuse.py").read_text("utf-8").splitlines()
    marked = [(number, line.split("# error: ")[1]) for number, line in enumerate(lines, 1) if "  # error: " in line]
    assert marked
    assert _reported(report, "misuse.py") == marked
