"""Freed memory back to the system: after a flood of large requests the C heap would keep what it got at the peak."""

from __future__ import annotations

import asyncio
import ctypes

__all__ = ["release_free_memory", "release_regularly"]


def release_free_memory() -> bool:
    """Return free heap pages to the system, as glibc's `malloc_trim` does; False where the C library has no such call.

    Takes a few milliseconds on a large heap, during which other threads may have to wait for memory.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))


async def release_regularly(interval_s: float = 60.0) -> None:
    """Release every `interval_s` seconds, on a thread, until cancelled; ends at once where it cannot be done."""
    while True:
        await asyncio.sleep(interval_s)
        if not hasattr(ctypes.CDLL(None), "malloc_trim"):
            return
        await asyncio.to_thread(release_free_memory)
