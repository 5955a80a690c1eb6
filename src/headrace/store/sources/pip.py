"""pip as a downloader: in flows a package and version, out comes its wheel in a folder. pip runs as a child process.

Only wheels are asked for, so that no set-up code of a package runs on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

from headrace.errors import IntegrityError, NotFound, Unavailable
from headrace.store.progress import Progress, Step

__all__ = ["download"]

_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NEWEST = 8


def download(package: str, version: str, folder: Path, progress: Progress) -> Path:
    """Download the wheel of `package` (the newest if `version` is "") into the empty `folder`.

    Raises `NotFound` if no index has such a wheel, `Unavailable` if pip is absent or fails otherwise.
    """
    requirement = f"{package}=={version}" if version else package
    with progress.step(f"downloading {requirement}") as step:
        code, errors = _run(requirement, folder, "raw", step)
        if code == 2 and "--progress-bar" in errors:  # a pip before 24.1 cannot report bytes
            code, errors = _run(requirement, folder, "off", step)
    if code:
        raise _explain(requirement, errors)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise IntegrityError(f"pip download {requirement}: expected one wheel, got {len(wheels)}")
    return wheels[0]


def _run(requirement: str, folder: Path, bar: str, step: Step) -> tuple[int, str]:
    # -P keeps a folder named `pip` in the working directory from being run in its place.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-binary=:none:", "--only-binary=:all:"]
    command += [
        "--no-input",
        "--disable-pip-version-check",
        f"--progress-bar={bar}",
        "--dest",
        str(folder),
        "--",
        requirement,
    ]
    # pip's temporary files go where the wheel goes: swept with it if pip is killed, and no small /tmp gets filled.
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(scratch)}
    said: deque[bytes] = deque(maxlen=50)  # some pips tell their errors on standard output
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if report := _PROGRESS.search(line):
                    step.at(int(report[1]), int(report[2]))
                else:
                    said.append(line)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        errors.seek(0)
        return code, (b"".join(said) + errors.read()).decode(errors="replace")


def _explain(requirement: str, errors: str) -> NotFound | Unavailable:
    if "No module named pip" in errors:
        return Unavailable(f"pip is not installed for {sys.executable}; run: {sys.executable} -m ensurepip")
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    if any("No matching distribution" in line or "Could not find a version" in line for line in lines):
        listed = next((found[1] for line in lines if (found := _VERSIONS.search(line))), "none")
        newest = ", ".join(listed.split(", ")[-_NEWEST:])
        return NotFound(f"pip finds no wheel of {requirement}; versions with a wheel, newest last: {newest}")
    return Unavailable(f"pip download {requirement}: {lines[-1] if lines else errors.strip()[-300:] or 'failed'}")
