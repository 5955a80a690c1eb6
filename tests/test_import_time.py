"""Importing is cheap: the package loads nothing foreign, the command line nothing heavy, no module an optional extra.

What is asserted is the set of loaded modules, never a time.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Import names of the optional extras: loaded where they are used, never at import.
OPTIONAL = {"cv2", "jsonschema", "onnxruntime", "opentelemetry", "PIL", "soundfile", "soxr", "torch"}

PROBE = """
import json, sys
before = set(sys.modules)
{body}
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}})))
"""


def _loaded(body: str) -> set[str]:
    """Top-level modules that `body` loads in a fresh interpreter, beyond those that it starts with."""
    run = subprocess.run([sys.executable, "-c", PROBE.format(body=body)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_the_package_loads_nothing_foreign() -> None:
    foreign = _loaded("import headrace, headrace.errors") - sys.stdlib_module_names - {"headrace"}
    assert foreign == set()


def test_the_command_line_loads_nothing_heavy() -> None:
    loaded = _loaded("import headrace.cli")
    assert loaded & (OPTIONAL | {"numpy", "msgspec", "uvloop", "httptools"}) == set()
    assert "typer" in loaded


WALK = """
import importlib, pkgutil, headrace
for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if module.name.startswith({planes!r}):
        importlib.import_module(module.name)
"""


@pytest.mark.parametrize(
    "plane", ["headrace.core", "headrace.store", "headrace.serve", "headrace.cli", "headrace.apps"]
)
def test_no_module_loads_an_optional_extra(plane: str) -> None:
    assert _loaded(WALK.format(planes=plane)) & OPTIONAL == set()
