"""What this processor offers to kernels and placement, in one struct: `core.machine` read from the system, plus SIMD.

Files of /proc and /sys and the processor's own answers flow in, one frozen `Cpu` flows out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace import _native
from headrace.core.cgroup import Limits
from headrace.core.machine import Cache, HugePages, NumaNode, machine

__all__ = ["Cpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` are physical, `usable_cpus` what affinity leaves this process; `isa` is what kernels use, one of `isas`.

    What the system does not tell is "", 0, empty or None (see `core.machine`).
    """

    model: str
    architecture: str
    cores: int
    usable_cpus: int
    features: tuple[str, ...]
    isas: tuple[str, ...]
    isa: str
    caches: tuple[Cache, ...]
    numa: tuple[NumaNode, ...]
    huge_pages: HugePages
    limits: Limits

    @property
    def threads(self) -> int:
        """How many threads are worth running: usable cpus, less where a control group grants less time. At least 1."""
        granted = self.limits.cpus
        return max(1, self.usable_cpus if granted is None else min(self.usable_cpus, round(granted)))


def cpu(root: Path = Path("/")) -> Cpu:
    """Probe the processor; `root` is where /proc and /sys are looked for. `ConfigError` for a bad HEADRACE_ISA."""
    found = machine(root)
    return Cpu(
        model=found.cpu_model,
        architecture=found.architecture,
        cores=found.cores,
        usable_cpus=found.usable_cpus,
        features=tuple(_native.cpu_features()),
        isas=tuple(_native.supported_isas()),
        isa=_native.best_isa(),
        caches=found.caches,
        numa=found.numa,
        huge_pages=found.huge_pages,
        limits=found.limits,
    )
