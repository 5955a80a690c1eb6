"""What the control groups around this process allow it: CPU time and memory, from cgroup v2, v1 or a mix of both.

Files of /proc and /sys flow in, two numbers flow out. A limit may sit at any level above the process, so every level up
to the mount is read and the tightest one counts. Nothing here raises: what cannot be read does not limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Limits", "limits"]

# cgroup v1 says "no limit" with the largest multiple of the page size below 2**63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Limits:
    """`cpus`: CPU time in cores; `memory_bytes`. None where nothing limits."""

    cpus: float | None = None
    memory_bytes: int | None = None


def limits(root: Path = Path("/")) -> Limits:
    """The limits of this process; `root` is where /proc and /sys are looked for."""
    cpus: list[float] = []
    memory: list[int] = []
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = controllers.split(",")
        if number == "0":
            for folder in _upwards(mount, path):
                cpus += _v2_cpus(folder)
                memory += _numbers(folder / "memory.max")
        if "memory" in names:
            for folder in _upwards(mount / "memory", path):
                memory += _numbers(folder / "memory.limit_in_bytes")
        if "cpu" in names:
            for folder in [*_upwards(mount / controllers, path), *_upwards(mount / "cpu", path)]:
                cpus += _v1_cpus(folder)
    memory = [size for size in memory if size < _NO_LIMIT]
    return Limits(min(cpus, default=None), min(memory, default=None))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The folder of the group and all above it, the mount last; a path from outside a container may not be there."""
    folder = mount / path.lstrip("/")
    while True:
        yield folder
        if folder == mount or mount not in folder.parents:
            return
        folder = folder.parent


def _v2_cpus(folder: Path) -> list[float]:
    quota = _numbers(folder / "cpu.max")
    return [quota[0] / quota[1]] if len(quota) == 2 and quota[1] > 0 else []


def _v1_cpus(folder: Path) -> list[float]:
    quota, period = _numbers(folder / "cpu.cfs_quota_us"), _numbers(folder / "cpu.cfs_period_us")
    return [quota[0] / period[0]] if quota and period and quota[0] > 0 and period[0] > 0 else []


def _numbers(path: Path) -> list[int]:
    """The whole file as integers; nothing when it holds a word such as "max"."""
    try:
        return [int(word) for word in _read(path).split()]
    except ValueError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
