"""What the process itself costs: memory, CPU, open files, garbage-collector pauses and event-loop lag.

Readings come from /proc and are taken at scrape time; where /proc is absent they show as NaN.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import deque

from headrace.core.telemetry.metrics import Registry

__all__ = ["LoopLag", "ProcessMetrics"]


class ProcessMetrics:
    """Registers the process metrics in `registry`; `close` takes the hook out of the garbage collector again."""

    def __init__(self, registry: Registry) -> None:
        registry.gauge("process_resident_memory_bytes", "Resident memory.").set_function(_resident_bytes)
        registry.counter("process_cpu_seconds", "User and system CPU time.").labels().set_function(time.process_time)
        registry.gauge("process_open_fds", "Open file descriptors.").set_function(_open_fds)
        registry.gauge("process_start_time_seconds", "Start of the process, Unix time.").set(_start_time_s())
        pauses = registry.histogram(
            "headrace_gc_pause_seconds", "Time the program stood still for garbage collection.", ("generation",)
        )
        # The hook may run inside any allocation, so it only appends; the histogram is filled at scrape time.
        self._pauses: deque[tuple[int, float]] = deque(maxlen=10_000)
        self._series = [pauses.labels(generation=str(generation)) for generation in range(3)]
        self._began_s = 0.0
        self._enabled = registry.enabled
        if self._enabled:
            registry.before_scrape(self._fold)
            gc.callbacks.append(self._on_gc)

    def close(self) -> None:
        """Stop timing the garbage collector. May be called more than once."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        elif self._began_s:
            self._pauses.append((info["generation"], time.perf_counter() - self._began_s))

    def _fold(self) -> None:
        for _ in range(len(self._pauses)):
            generation, pause_s = self._pauses.popleft()
            self._series[generation].observe(pause_s)


class LoopLag:
    """How late an event loop runs what is due: the time that callbacks spend blocking it.

    Await `run()` in a task of the loop to watch and cancel that task to stop.
    """

    def __init__(self, registry: Registry, interval_s: float = 0.1) -> None:
        self._interval_s = interval_s
        self._family = registry.histogram(
            "headrace_event_loop_lag_seconds", "Delay of a timer of the event loop past its due time.", ("loop",)
        )

    async def run(self, loop_name: str = "main") -> None:
        series = self._family.labels(loop=loop_name)
        while True:
            due_s = time.perf_counter() + self._interval_s
            await asyncio.sleep(self._interval_s)
            series.observe(max(0.0, time.perf_counter() - due_s))


def _resident_bytes() -> float:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))


def _open_fds() -> float:
    return len(os.listdir("/proc/self/fd")) - 1  # not the one that lists them


def _start_time_s() -> float:
    """From /proc: seconds since boot at which the process began, plus the time of boot; NaN without /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat", "rb") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration):
        return float("nan")
