"""The C++ tests, built and run once plain and once under each sanitizer. Builds are kept and brought up to date."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

PRESETS = {"release": "", "asan": "address,undefined", "tsan": "thread"}
HEADERS = Path(__file__).resolve().parents[2] / "native" / "include" / "headrace"


def tool(name):
    """The program from this environment, else from the system."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def compiler():
    return shutil.which(os.environ.get("CXX", "c++")) or tool("g++")


def missing_runtime(compiler, sanitizers, folder):
    """Why a program with these sanitizers cannot be built and run here, or ""."""
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text("int main() { return 0; }\n")
    built = subprocess.run(
        [compiler, f"-fsanitize={sanitizers}", str(source), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if built.returncode == 0 else f"no {sanitizers} sanitizer: {built.stderr.strip().splitlines()[-1]}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("preset", PRESETS)
def test_cpp(preset, checkout, compiler, tmp_path):
    if PRESETS[preset] and (reason := missing_runtime(compiler, PRESETS[preset], tmp_path)):
        pytest.skip(reason)
    cmake, ninja = tool("cmake"), tool("ninja")
    build = checkout / "build" / f"cpp-{preset}"
    run([cmake, "--preset", preset, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"], checkout)
    run([cmake, "--build", str(build)], checkout)
    output = run([str(build / "headrace_tests")], build)
    passed, failed = map(int, re.findall(r"^(\d+) passed, (\d+) failed$", output, re.MULTILINE)[0])
    registered = sum(
        len(re.findall(r"^TEST\(", path.read_text(), re.M)) for path in (checkout / "native/tests").glob("*.cpp")
    )
    assert (passed, failed) == (registered, 0)


def test_every_header_has_its_tests(checkout):
    included = "".join(path.read_text() for path in (checkout / "native/tests").glob("test_*.cpp"))
    untested = {path.name for path in HEADERS.glob("*.hpp") if f'"headrace/{path.name}"' not in included}
    assert untested == set()
