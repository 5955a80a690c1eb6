"""When a batch leaves the queue, and where it runs. Pure functions: the batcher applies what they decide.

Work-conserving batching: a batch leaves as soon as nothing runs, so a lone request never waits for the window; while
the model is busy, requests gather, up to `max_batch` rows or until the oldest has waited `window_s`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["INLINE_LIMIT_S", "Execution", "batch_wait_s", "next_run_s", "runs_inline"]

Execution: TypeAlias = Literal["auto", "inline", "thread"]

INLINE_LIMIT_S = 200e-6
"""A run shorter than this costs less on the event loop than the hop to a thread and back (about 50-100 us of latency
and two wake-ups), and does not hold up other connections noticeably."""


def batch_wait_s(
    rows: int, oldest_wait_s: float, running: int, instances: int, max_batch: int, window_s: float
) -> float | None:
    """Seconds until the queue should be dispatched: 0 now, None not before a run ends or a row arrives.

    Args:
        rows: Rows queued.
        oldest_wait_s: How long the oldest queued row has waited.
        running: Batches running now; `instances` is how many may.
        max_batch, window_s: The two thresholds.
    """
    if rows == 0 or running >= instances:
        return None
    if running == 0 or rows >= max_batch:
        return 0.0
    return max(0.0, window_s - oldest_wait_s)


def runs_inline(execution: Execution, run_s: float, inline_now: bool) -> bool:
    """Whether the next batch runs on the event loop, `run_s` being the expected CPU time of a run (seconds).

    CPU time, because the wall clock of a run on a thread also counts its wait for the interpreter lock. The two limits
    differ by a factor of two so that a model near the limit does not flip to and fro.
    """
    if execution != "auto":
        return execution == "inline"
    return run_s < (INLINE_LIMIT_S if inline_now else INLINE_LIMIT_S / 2)


def next_run_s(run_s: float, took_s: float, last_s: float) -> float:
    """The expected run time after a run of `took_s` that followed one of `last_s`.

    Rises at once, but only to what two runs in a row reached (one slow run is the machine: a page fault, time stolen by
    a hypervisor); falls by a tenth of the difference per run.
    """
    sample_s = min(took_s, last_s)
    return max(sample_s, run_s + 0.1 * (sample_s - run_s))
