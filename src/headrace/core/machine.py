"""The machine as the operating system describes it: processor, caches, NUMA, memory, huge pages, limits.

Files of /proc and /sys flow in, one frozen `Machine` flows out. Nothing here raises on an odd machine: what is unknown
is "" , 0, empty or None. Nothing is measured either.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from headrace.core.cgroup import Limits, limits

__all__ = ["Cache", "HugePages", "Machine", "NumaNode", "machine", "parse_cpu_list"]


@dataclass(frozen=True, slots=True)
class Cache:
    """One kind of cache: `instances` of `size_bytes` each; `kind` is "data", "instruction" or "unified"."""

    level: int
    kind: str
    size_bytes: int
    instances: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    number: int
    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class HugePages:
    """`transparent` is the kernel's mode ("always", "madvise", "never"), `reserved` counts pages set aside."""

    transparent: str
    size_bytes: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores` are physical, `cpus` logical; `usable_cpus` is what affinity lets this process use."""

    architecture: str
    kernel: str
    cpu_model: str
    sockets: int
    cores: int
    cpus: int
    usable_cpus: int
    memory_bytes: int
    available_bytes: int
    limits: Limits
    caches: tuple[Cache, ...]
    numa: tuple[NumaNode, ...]
    huge_pages: HugePages


def machine(root: Path = Path("/")) -> Machine:
    """Describe this machine; `root` is where /proc and /sys are looked for."""
    info = _read(root / "proc/cpuinfo")
    memory = _meminfo(_read(root / "proc/meminfo"))
    folders = _numbered(root / "sys/devices/system/cpu", "cpu")
    places = {
        (_read(folder / "topology/physical_package_id").strip(), _read(folder / "topology/core_id").strip())
        for folder in folders
    } - {("", "")}
    cpus = os.cpu_count() or 1
    return Machine(
        architecture=platform.machine(),
        kernel=platform.release(),
        cpu_model=_cpu_model(info),
        sockets=len({socket for socket, _ in places}) or 1,
        cores=len(places) or cpus,
        cpus=cpus,
        usable_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus,
        memory_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", 0),
        limits=limits(root),
        caches=_caches(folders),
        numa=tuple(_node(folder) for folder in _numbered(root / "sys/devices/system/node", "node")),
        huge_pages=_huge_pages(root, memory),
    )


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a kernel list such as "0-3,8,10-11"; parts that are no numbers are left out."""
    found: list[int] = []
    for part in text.strip().split(","):
        if match := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part):
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def _cpu_model(info: str) -> str:
    """The name, or what stands in its place on processors that have none."""
    for key in ("model name", "Model", "Hardware", "cpu model", "uarch"):
        if match := re.search(rf"^{key}\s*:\s*(.+)$", info, re.MULTILINE):
            return match[1].strip()
    part = re.search(r"^CPU part\s*:\s*(\S+)$", info, re.MULTILINE)
    maker = re.search(r"^CPU implementer\s*:\s*(\S+)$", info, re.MULTILINE)
    return f"implementer {maker[1]} part {part[1]}" if part and maker else platform.processor()


def _meminfo(text: str) -> dict[str, int]:
    """Sizes in bytes (lines with kB) and counts (the others)."""
    found = re.findall(r"^(\w+):\s*(\d+)( kB)?$", text, re.MULTILINE)
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in found}


def _caches(folders: list[Path]) -> tuple[Cache, ...]:
    seen: dict[tuple[int, str, int], set[str]] = {}
    for folder in folders:
        for cache in _numbered(folder / "cache", "index"):
            level, kind = _read(cache / "level").strip(), _read(cache / "type").strip().lower()
            size = re.fullmatch(r"(\d+)([KMG]?)", _read(cache / "size").strip())
            if level.isdigit() and size:
                key = (int(level), kind, int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]])
                seen.setdefault(key, set()).add(_read(cache / "shared_cpu_list").strip() or str(folder))
    return tuple(Cache(*key, len(places)) for key, places in sorted(seen.items()))


def _node(folder: Path) -> NumaNode:
    match = re.search(r"MemTotal:\s*(\d+) kB", _read(folder / "meminfo"))
    cpus = parse_cpu_list(_read(folder / "cpulist"))
    return NumaNode(int(folder.name.removeprefix("node")), cpus, int(match[1]) * 1024 if match else 0)


def _huge_pages(root: Path, memory: dict[str, int]) -> HugePages:
    chosen = re.search(r"\[(\w+)\]", _read(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return HugePages(
        transparent=chosen[1] if chosen else "",
        size_bytes=memory.get("Hugepagesize", 0),
        reserved=memory.get("HugePages_Total", 0),
        free=memory.get("HugePages_Free", 0),
    )


def _numbered(folder: Path, prefix: str) -> list[Path]:
    """Sub-folders `<prefix><number>`, in the order of their numbers."""
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(rf"{prefix}\d+", name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=lambda name: int(name.removeprefix(prefix)))]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
