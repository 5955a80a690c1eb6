"""What can go wrong with an environment in a worker: facts in, one `Fault` out that tells them in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.errors import StageFailed

__all__ = ["BadValues", "Fault", "FaultKind", "RemoteTraceback"]

FaultKind: TypeAlias = Literal["error", "shape", "bad_value", "crash", "hang", "memory", "lost"]
"""`error`: it raised; `shape`: its observation did not fit its space; `bad_value`: NaN or infinity; `crash`: its
process died; `hang`: a call took too long; `memory`: its process grew too large; `lost`: another environment of its
process crashed, hung or grew."""

BadValues: TypeAlias = Literal["stop", "drop", "clip"]


class RemoteTraceback(Exception):
    """Where it happened in the worker; the `__cause__` of errors that come from there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one environment. `step`: which of the episode (1 is the first, 0 its reset) was being taken."""

    env: int
    kind: FaultKind
    step: int
    action: Any
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        when = f"step {self.step}, action {self.action}" if self.step else "reset"
        return f"environment {self.env}, {when}: {self.message}"

    def as_error(self) -> StageFailed:
        """The error to raise where faults are not mended."""
        error = StageFailed(f"environment {self.env}", str(self).split(", ", 1)[1])
        if self.traceback:
            error.__cause__ = RemoteTraceback(self.traceback)
        return error
