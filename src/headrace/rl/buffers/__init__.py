"""Replay memory: transitions of many processes flow in, batches for a learner flow out, uniform or by priority.

A buffer is a ring of `capacity` rows in shared memory; a row is one value of each `Field`. The newest row takes the
place of the oldest. Any number of processes push and sample at the same time and nobody waits: a row is never seen half
written, and what a killed process was writing is taken over by the next to get there. docs/replay.md has the rules.

Rows come as one array of n rows for each field and go from the caller's memory to the shared one, and back, directly;
what has another dtype or layout is converted first, if that loses no kind of number.
"""

from __future__ import annotations

from headrace.rl.buffers.fields import Batch, Field, Integrity, ReplayStats
from headrace.rl.buffers.nstep import NStep
from headrace.rl.buffers.prioritised import PrioritisedReplay
from headrace.rl.buffers.replay import ReplayBuffer

__all__ = ["Batch", "Field", "Integrity", "NStep", "PrioritisedReplay", "ReplayBuffer", "ReplayStats"]
