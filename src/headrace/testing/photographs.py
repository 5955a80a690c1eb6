"""Real photographs of text that a public package ships, with what is written on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.store.progress import Progress
from headrace.store.sources import open_source

__all__ = ["PHOTOGRAPHS", "Photograph", "fetch_photograph"]


@dataclass(frozen=True, slots=True)
class Photograph:
    """Where a picture comes from, and its lines from top to bottom as a person reads them."""

    name: str
    source: str
    lines: tuple[str, ...]


PHOTOGRAPHS = (
    Photograph(
        "page",
        "pypi://scikit-image==0.26.0/skimage/data/page.png",
        (
            "Region-based segmentation",
            "Let us first determine markers of the coins and the",
            "background. These markers are pixels that we can label",
            "unambiguously as either object or background. Here,",
            "the markers are found at the two extreme parts of the",
            "histogram of grey values:",
            ">>> markers = np.zeros_like(coins)",
        ),
    ),
)


def fetch_photograph(photograph: Photograph, folder: Path, progress: Progress) -> bytes:
    """The file's bytes, kept in the empty or absent `folder`. Raises `Unavailable` where it cannot be had."""
    target = folder / photograph.name
    if not any(target.glob("*")):
        target.mkdir(parents=True, exist_ok=True)
        open_source(photograph.source).fetch(target, progress)
    return next(target.glob("*")).read_bytes()
