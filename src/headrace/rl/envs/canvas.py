"""A picture drawn in the units of an environment: lines, circles and polygons in, an RGB array out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.extras import require

__all__ = ["Canvas"]

Colour = tuple[int, int, int]
Point = tuple[float, float]

_OVERSAMPLED = 2  # drawn twice as large and shrunk: smooth edges


class Canvas:
    """White, showing `world` (left, bottom, right, top) as large as fits `width` x `height` pixels, y upwards.

    Raises `MissingExtra` without pillow.
    """

    def __init__(self, world: tuple[float, float, float, float], width: int = 400, height: int = 400) -> None:
        self._image = require("PIL.Image", "rl").new("RGB", (width * _OVERSAMPLED, height * _OVERSAMPLED), "white")
        self._draw: Any = require("PIL.ImageDraw", "rl").Draw(self._image)
        left, bottom, right, top = world
        self._scale = _OVERSAMPLED * min(width / (right - left), height / (top - bottom))
        self._centre = ((left + right) / 2, (bottom + top) / 2)
        self._size = (width, height)

    def _at(self, point: Point) -> Point:
        x = self._size[0] * _OVERSAMPLED / 2 + (point[0] - self._centre[0]) * self._scale
        y = self._size[1] * _OVERSAMPLED / 2 - (point[1] - self._centre[1]) * self._scale
        return x, y

    def line(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """A line through `points`, `width` in units of the world, with round ends."""
        pixels = max(1, round(width * self._scale))
        self._draw.line([self._at(p) for p in points], fill=colour, width=pixels, joint="curve")
        if pixels > 2:
            for end in (points[0], points[-1]):
                self.circle(end, width / 2, colour)

    def circle(self, centre: Point, radius: float, colour: Colour) -> None:
        x, y = self._at(centre)
        r = radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        self._draw.polygon([self._at(p) for p in points], fill=colour)

    def box(self, left: float, bottom: float, right: float, top: float, colour: Colour) -> None:
        self.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], colour)

    def array(self) -> NDArray[np.uint8]:
        """The picture, uint8[height, width, 3]."""
        return np.asarray(self._image.resize(self._size, require("PIL.Image", "rl").Resampling.BOX), np.uint8)
