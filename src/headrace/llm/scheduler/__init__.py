"""Who runs in the next step, and with how many tokens."""

from __future__ import annotations

from headrace.llm.scheduler.batch import BatchBuilder
from headrace.llm.scheduler.shell import Scheduler

__all__ = ["BatchBuilder", "Scheduler"]
