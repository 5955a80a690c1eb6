import asyncio
import ctypes
import subprocess
import sys

import pytest

from headrace.core.memory import release_free_memory, release_regularly

FLOOD = """
import ctypes
from headrace.core.memory import release_free_memory

def resident_mb():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
blocks = [libc.malloc(60_000) for _ in range(4000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]:  # the last one pins the top of the heap, so that free alone returns nothing
    libc.free(block)
before = resident_mb()
release_free_memory()
print(before, resident_mb())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim")
def test_freed_memory_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, done.stdout.split())
    assert before - after > 150


async def test_releasing_regularly_ends_when_cancelled():
    task = asyncio.create_task(release_regularly(0.001))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert release_free_memory() in (True, False)
