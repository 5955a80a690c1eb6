"""Named memory shared between processes: a name and a size flow in, a mapped segment flows out.

The creating process owns the name and removes it when its `SharedSegment` is dropped; a process that attaches never
removes it. The name of an owner that was killed is removed by the next `create` in any process. Segments live under
/dev/shm as `headrace-<name>`, readable by this user only.
"""

from __future__ import annotations

import os
import secrets

from headrace._native import SharedSegment

__all__ = ["SharedSegment", "attach", "create", "sweep"]


def create(name: str | None, size_bytes: int) -> SharedSegment:
    """Make a segment of `size_bytes` zeroed bytes; `name` (letters, digits, ".", "_", "-") is made up when None.

    Raises `InvalidInput` (name or size), `Conflict` (a live process owns the name), `Overloaded` (no memory left).
    """
    sweep()
    return SharedSegment.create(name or f"{os.getpid()}-{secrets.token_hex(6)}", size_bytes)


def attach(name: str) -> SharedSegment:
    """Map the segment another process made. Raises `NotFound`, or `IntegrityError` when it is none of ours."""
    return SharedSegment.attach(name)


def sweep() -> list[str]:
    """Remove the names of segments whose owners are dead; returns them. Whoever still maps one keeps the memory."""
    return SharedSegment.sweep()
