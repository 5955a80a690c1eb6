"""Compile the WebAssembly environments that come with Headrace: C sources in, modules beside them.

    python tools/build_wasm.py [--check]

Needs `pip install ziglang` (a C compiler with a WebAssembly target in a wheel). The modules are kept in the repository,
so only whoever changes a source needs this; `--check` compiles and says whether what is kept is what comes out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "src" / "headrace" / "rl" / "wasm"
FLAGS = [
    *("-target", "wasm32-freestanding", "-O3", "-msimd128", "-ffp-contract=off", "-fno-sanitize=all", "-nostdlib"),
    *("-g0", "-Wall", "-Wextra", "-Werror"),
    *("-Wl,--no-entry", "-Wl,--export=__heap_base", "-Wl,--strip-all"),
]


def build(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, str(source), "-o", str(target)]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    for source in sorted(FOLDER.glob("*.c")):
        kept = source.with_suffix(".wasm")
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / kept.name
            build(source, made)
            content = made.read_bytes()
        same = kept.is_file() and kept.read_bytes() == content
        print(f"{kept.name}: {len(content)} bytes, {'as kept' if same else 'differs from what is kept'}")
        if args.check and not same:
            raise SystemExit(1)
        if not args.check:
            kept.write_bytes(content)


if __name__ == "__main__":
    main()
