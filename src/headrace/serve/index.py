"""What a repository knows of each name: loads and unloads as they happen in, lines of its index out.

An entry remembers what is served and, beside it, the version that failed to take its place. It loads and frees nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from headrace.errors import HeadraceError
from headrace.serve.model import Model
from headrace.serve.pipeline import Pipeline

__all__ = ["Entry", "IndexEntry"]

State = Literal["READY", "LOADING", "UNAVAILABLE"]


class IndexEntry(TypedDict):
    """One line of the Open Inference Protocol's repository index."""

    name: str
    version: str
    state: State
    reason: str


@dataclass(slots=True)
class Entry:
    """What is known of one name. Whoever changes what is served holds its lock.

    Attributes:
        failed: The version that could not be loaded beside a served one.
        waits_for: Models of a pipeline that could not be loaded because one of them was missing.
    """

    name: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    served: Model | Pipeline | None = None
    state: State = "UNAVAILABLE"
    version: str = ""
    reason: str = ""
    failed: IndexEntry | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def is_pipeline(self) -> bool:
        """Whether a pipeline is served."""
        return isinstance(self.served, Pipeline)

    def begin(self) -> None:
        """A load begins. What is served stays ready meanwhile."""
        if self.served is None:
            self.state, self.version, self.reason = "LOADING", "", ""

    def fail(self, version: str, error: HeadraceError) -> None:
        """The load of `version` failed. What is served stays, and the failure gets a line of its own."""
        line = IndexEntry(name=self.name, version=version, state="UNAVAILABLE", reason=str(error))
        if self.served is None:
            self.state, self.version, self.reason = line["state"], line["version"], line["reason"]
        else:
            self.failed = line

    def serve(self, served: Model | Pipeline, reason: str) -> None:
        """The load succeeded; `reason` is what an operator should know of the version, or ""."""
        self.served, self.state, self.version, self.reason = served, "READY", served.version, reason
        self.failed, self.waits_for = None, ()

    def stop(self, reason: str) -> None:
        """Nothing is served any more, because of `reason`; the version stays on record."""
        self.served, self.state, self.reason = None, "UNAVAILABLE", reason
        self.failed, self.waits_for = None, ()

    def lines(self) -> Iterator[IndexEntry]:
        """Its lines of the index: itself, then the version that failed beside it, if one did."""
        yield IndexEntry(name=self.name, version=self.version, state=self.state, reason=self.reason)
        if self.failed is not None:
            yield self.failed
