"""What every test folder may lean on: where the checkout lies, and its tracked files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import uvloop

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def tracked(checkout: Path) -> list[Path]:
    """Files of the project (tracked, or new and not ignored), relative to the root; a source archive has no git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = {Path(name) for name in listing.stdout.decode().split("\0") if name}
    return sorted(name for name in names if (checkout / name).is_file())


def pytest_asyncio_loop_factories(config, item):
    """Coroutine tests run on the loop the server runs on."""
    return {"uvloop": uvloop.new_event_loop}
