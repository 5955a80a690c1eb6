"""Showing long work: in flow steps with a label and perhaps a byte count, out come a bar, plain lines or nothing.

A terminal gets a bar (a spinner while the size is unknown), anything else one line a step; both go to stderr, so that
stdout stays for results.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Protocol

__all__ = ["Bars", "Lines", "Progress", "Silent", "Step", "format_bytes", "make_progress"]


class Step(Protocol):
    """A step in progress; `total` may become known late."""

    def advance(self, size_bytes: int) -> None: ...

    def at(self, done_bytes: int, total_bytes: int) -> None: ...


class Progress(Protocol):
    """Where long work reports to."""

    def step(self, label: str, total_bytes: int | None = None) -> contextlib.AbstractContextManager[Step]: ...

    def note(self, text: str) -> None: ...


class _Nothing:
    def advance(self, size_bytes: int) -> None:
        pass

    def at(self, done_bytes: int, total_bytes: int) -> None:
        pass


class Silent:
    """Shows nothing."""

    @contextlib.contextmanager
    def step(self, label: str, total_bytes: int | None = None) -> Iterator[Step]:
        yield _Nothing()

    def note(self, text: str) -> None:
        pass


class Lines(Silent):
    """One line when a step begins; for logs and pipes."""

    @contextlib.contextmanager
    def step(self, label: str, total_bytes: int | None = None) -> Iterator[Step]:
        size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
        self.note(f"{label}{size}")
        yield _Nothing()

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _BarStep:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, size_bytes: int) -> None:
        self._bar.advance(self._task, size_bytes)

    def at(self, done_bytes: int, total_bytes: int) -> None:
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)


class Bars:
    """A live bar a step, on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    @contextlib.contextmanager
    def step(self, label: str, total_bytes: int | None = None) -> Iterator[Step]:
        from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
        )
        with RichProgress(*columns, console=self._console, transient=True) as bar:
            yield _BarStep(bar, bar.add_task(label, total=total_bytes))

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def make_progress(*, quiet: bool = False) -> Progress:
    """The fitting way to show progress: nothing when quiet, a bar on a terminal, else lines."""
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


def format_bytes(size_bytes: float) -> str:
    """`4.7 MB`: decimal units, three significant digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"
