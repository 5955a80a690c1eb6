"""Stop texts: pieces of an answer in, what of it may be shown out, until one of the stop texts is found.

Only what could be the beginning of a stop text is held back, so that a stream lags no more than it must.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Looks for the stop that ends first; of those that end together, the one that begins first.

    Attributes:
        matched: The stop text that was found, or "". After that, no text comes out any more.
    """

    def __init__(self, stops: Sequence[str]) -> None: ...

    def push(self, text: str) -> str:
        """Take the next piece of the answer, return what is now certain to belong to it (before the stop)."""

    def flush(self) -> str:
        """The answer ended without a stop: return what was held back."""
