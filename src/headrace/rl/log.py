"""Where training writes what it measures: named numbers in, TensorBoard event files out; and back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.core.extras import require

__all__ = ["EventLog", "read_events"]


class EventLog:
    """Appends to an event file in `folder`; read with `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        writers = require("tensorboard.summary.writer.event_file_writer", "rl")
        self._event: Any = require("tensorboard.compat.proto.event_pb2", "rl").Event
        self._summary: Any = require("tensorboard.compat.proto.summary_pb2", "rl").Summary
        self._writer: Any = writers.EventFileWriter(str(folder))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Note these numbers at `step`, NaNs left out."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in numbers.items()
            if not math.isnan(value)
        ]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def flush(self) -> None:
        """Let readers see what has been written."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_events(folder: Path) -> Iterator[Iterator[tuple[int, dict[str, float]]]]:
    """The event files in `folder`, in the order in which they were begun: of each, steps and the numbers noted at them.
    A file that is damaged, or still written, ends where it can no longer be read."""
    loader = require("tensorboard.backend.event_processing.event_file_loader", "rl").LegacyEventFileLoader
    begun = []
    for path in folder.glob("events.out.tfevents.*"):
        events = iter(loader(str(path)).Load())
        head = next(events, None)  # each file begins with one that only has the time
        if head is not None:
            begun.append((head.wall_time, path.name, events))
    for _, _, events in sorted(begun, key=lambda one: one[:2]):
        yield _numbers(events)


def _numbers(events: Iterator[Any]) -> Iterator[tuple[int, dict[str, float]]]:
    for event in events:
        if event.HasField("summary"):
            yield event.step, {value.tag: value.simple_value for value in event.summary.value}
