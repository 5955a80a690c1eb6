"""Stop texts: pieces of an answer in, what of it may be shown out, until one of the stop texts is found.

Only what could be the beginning of a stop text is held back, so that a stream lags no more than it must. A character
costs a few steps for each stop text, however long that is. Source: Knuth, Morris & Pratt 1977, "Fast pattern matching
in strings".
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Looks for the stop text that ends first; of those that end together, the one that begins first.

    Attributes:
        matched: The stop text that was found, or "". After that, no text comes out any more.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty texts."""
        self.matched = ""
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._begins = frozenset(stop[0] for stop in stops)
        self._reached = [0] * len(self._stops)  # of each stop, how much the answer so far ends with
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece of the answer, return what is now certain to belong to it (before the stop)."""
        if self.matched:
            return ""
        if not self._held and self._begins.isdisjoint(text):
            return text
        buffer = self._held + text
        for end in range(len(self._held) + 1, len(buffer) + 1):
            self._step(buffer[end - 1])
            if self.matched:
                self._held = ""
                return buffer[: end - len(self.matched)]
        certain = len(buffer) - max(self._reached, default=0)
        self._held = buffer[certain:]
        return buffer[:certain]

    def flush(self) -> str:
        """The answer ended without a stop: return what was held back."""
        rest, self._held = self._held, ""
        self._reached = [0] * len(self._stops)
        return rest

    def _step(self, char: str) -> None:
        for i, (stop, borders) in enumerate(self._stops):
            reached = self._reached[i]
            while reached and stop[reached] != char:
                reached = borders[reached - 1]
            if stop[reached] == char:
                reached += 1
            self._reached[i] = reached
            if reached == len(stop) > len(self.matched):
                self.matched = stop


def _borders(text: str) -> list[int]:
    """For each beginning of `text`, the length of the longest shorter one that it ends with."""
    borders = [0] * len(text)
    border = 0
    for i in range(1, len(text)):
        while border and text[border] != text[i]:
            border = borders[border - 1]
        if text[border] == text[i]:
            border += 1
        borders[i] = border
    return borders
