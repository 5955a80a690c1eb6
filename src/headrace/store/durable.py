"""Writing so that a crash leaves the old state or the new one: in flow bytes and paths, out comes durable state."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["fsync_dir", "fsync_tree", "replace_file", "replace_link", "scratch_name"]


def scratch_name(purpose: str) -> str:
    """A hidden name nobody else uses; what bears one may be swept by whoever holds the model's lock."""
    return f".{purpose}-{secrets.token_hex(6)}"


def fsync_dir(path: Path) -> None:
    """Make the entries of a directory (creations, renames) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Make every file and directory below `root`, and `root` itself, survive a power cut."""
    for folder, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        fsync_dir(Path(folder))


def replace_file(path: Path, content: bytes) -> None:
    """Write `path` whole or not at all."""
    scratch = path.with_name(scratch_name("write"))
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    fsync_dir(path.parent)


def replace_link(path: Path, target: str) -> None:
    """Point the symlink `path` at `target` in one step: a reader sees the old target or the new one."""
    scratch = path.with_name(scratch_name("link"))
    try:
        scratch.symlink_to(target)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    fsync_dir(path.parent)
