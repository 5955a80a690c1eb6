"""What a pool has to give back: processes and shared memory. Made here; released once, also if nobody closes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.core import shm
from headrace.core.extras import require
from headrace.core.ring import MpmcRing
from headrace.errors import ChannelClosed, InvalidInput, Unavailable
from headrace.rl.workers.board import Board
from headrace.rl.workers.drivers import DriverSettings
from headrace.rl.workers.shard import Shard
from headrace.rl.workers.worker import Job

__all__ = ["Held", "arrived"]


class Held:
    """`owner`: the pid that may release; a forked copy of it must not."""

    def __init__(self, owner: int, results: MpmcRing) -> None:
        self.owner, self.results = owner, results
        self.board: Board | None = None
        self.shards: list[Shard] = []
        self._payloads: list[shm.SharedSegment] = []

    def seat(
        self, factories: Sequence[Callable[[], Any]], workers: int, parallel: bool, driving: DriverSettings
    ) -> list[Shard]:
        """One seat for each of so many workers, environments dealt out evenly and in order.

        Raises `InvalidInput` for factories that cannot be pickled.
        """
        cloudpickle = require("cloudpickle", "rl")
        for index, numbers in enumerate(np.array_split(np.arange(len(factories)), workers)):
            envs = numbers.tolist()
            try:
                made = cloudpickle.dumps([factories[env] for env in envs])
            except Exception as error:
                raise InvalidInput(f"environments {envs[0]} … {envs[-1]}: factories cannot be sent: {error}") from error
            pickled = pickle.dumps(Job(index, parallel, envs, made, self.results.name, driving))
            segment = shm.create(None, len(pickled))
            segment.array()[:] = np.frombuffer(pickled, np.uint8)
            self._payloads.append(segment)
            self.shards.append(Shard(index, envs, segment.name))
        return self.shards

    def release(self) -> None:
        """Kill what runs and remove all names of shared memory."""
        if os.getpid() != self.owner:
            return
        for shard in self.shards:
            shard.kill()
        self.results.close()
        self.results.unlink()
        for segment in self._payloads:
            segment.unlink()
        if self.board is not None:
            self.board.unlink()


def arrived(results: MpmcRing) -> list[bytes]:
    """All that lies in the ring."""
    found = []
    try:
        while (piece := results.try_pop()) is not None:
            found.append(piece)
    except (Unavailable, ChannelClosed):
        pass  # nothing more will come
    return found
