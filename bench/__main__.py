"""`python -m bench`: every benchmark that takes minutes, one after the other (not the soak); options go to each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = ("core.py", "telemetry.py", "ocr.py", "vad.py", "serve/run.py", "rl/run.py")


def main() -> int:
    folder = Path(__file__).resolve().parent
    failed = []
    for name in PROGRAMS:
        print(f"-- bench/{name}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, str(folder / name), *sys.argv[1:]], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
