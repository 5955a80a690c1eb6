"""Where training writes what it measures: named numbers in, TensorBoard event files out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core.extras import require

__all__ = ["EventLog"]


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
