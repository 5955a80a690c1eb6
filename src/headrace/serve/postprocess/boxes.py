"""Text boxes from a text-probability map, and the geometry they need: corners, growth, reading order.

A map (H, W) in 0..1 -> oriented rectangles (n, 4, 2) in pixels of the map, after "Real-time Scene Text Detection with
Differentiable Binarization" (Liao et al., 2019, arXiv:1911.08947): binarise, trace contours, take each one's smallest
enclosing rectangle, score it by the mean probability inside, and grow it back by d = area x ratio / perimeter. Growing
a rectangle by d on every side is exactly the smallest rectangle round its offset polygon, so no polygon library is
needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.protocol import Array, Payload

__all__ = ["BoxOptions", "FindBoxes", "find_boxes", "reading_order"]

Boxes = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BoxOptions:
    """Thresholds of `find_boxes`.

    Attributes:
        threshold: Probability above which a pixel is text.
        min_score: Mean probability that a box must reach.
        grow: Offset ratio; the detector is trained on text areas shrunk by about its inverse.
        min_side: Shorter side, in pixels of the map, that a region needs before growth.
        max_boxes: Most boxes returned; the highest-scoring ones are kept.
    """

    threshold: float = 0.3
    min_score: float = 0.5
    grow: float = 1.6
    min_side: float = 3.0
    max_boxes: int = 1000

    def __post_init__(self) -> None:
        if not (0 < self.threshold < 1 and 0 <= self.min_score <= 1 and self.grow >= 0 and self.max_boxes >= 1):
            raise ConfigError(f"boxes: threshold and min_score lie in 0..1, grow >= 0, max_boxes >= 1; got {self}")


def find_boxes(probability: Array, options: BoxOptions | None = None) -> tuple[Boxes, npt.NDArray[np.float32], int]:
    """Find text in a map.

    Args:
        probability: (H, W), 0..1.

    Returns:
        Corners (n, 4, 2) as (x, y), clockwise from the text's own top-left (see `_reading_corners`); the scores (n,);
        and how many further boxes `max_boxes` cut off.
    """
    cv2 = require("cv2", "vision")
    options = options or BoxOptions()
    mask = (probability > options.threshold).astype(np.uint8)
    mask = cv2.dilate(mask, np.ones((2, 2), np.uint8))
    # Two-level contours: the outlines of all regions, those lying in the hole of another one too, but not the holes.
    contours, levels = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    boxes: list[Boxes] = []
    scores: list[float] = []
    for i, contour in enumerate(contours):
        if levels[0][i][3] != -1 or len(contour) < 3:
            continue
        (x, y), (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < options.min_side:
            continue
        score = _mean_inside(cv2, probability, cv2.boxPoints(((x, y), (width, height), angle)))
        if score < options.min_score:
            continue
        distance = width * height * options.grow / (2 * (width + height))
        grown = cv2.boxPoints(((x, y), (width + 2 * distance, height + 2 * distance), angle))
        boxes.append(_reading_corners(grown))
        scores.append(score)
    if not boxes:
        return np.zeros((0, 4, 2), np.float32), np.zeros(0, np.float32), 0
    keep = np.sort(np.argsort(scores, kind="stable")[::-1][: options.max_boxes])
    return np.stack(boxes)[keep], np.asarray(scores, np.float32)[keep], len(boxes) - len(keep)


def _mean_inside(cv2: Any, probability: Array, corners: Boxes) -> float:
    """Mean of the map inside a rectangle."""
    height, width = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    inside = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(inside, [(corners - (left, top)).astype(np.int32)], 1)
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], inside)[0])


def _reading_corners(corners: Boxes) -> Boxes:
    """Roll four clockwise corners so that corner 0 -> corner 1 is the way the text reads.

    A box whose height is less than 1.5 times its width is read along the edge closest to rightwards; a taller one
    is taken for text turned by a quarter and read downwards. (Upside-down text is found later, by looking at it.)
    """
    edges = np.roll(corners, -1, axis=0) - corners
    rightmost = int(np.argmax(edges[:, 0] / (np.linalg.norm(edges, axis=1) + 1e-6)))
    corners = np.roll(corners, -rightmost, axis=0)
    width, height = np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[2] - corners[1])
    return np.roll(corners, -1, axis=0) if height >= 1.5 * width else corners


def reading_order(boxes: Boxes) -> npt.NDArray[np.intp]:
    """Indices that sort (n, 4, 2) boxes into reading order: lines from top to bottom, each from its start to its end.

    "Top" is seen along the direction most of the text (by width) reads in, so a page that lies on its side or
    on its head comes out right too. Boxes are on one line when the centre of one lies within the middle of the other.
    """
    if len(boxes) == 0:
        return np.zeros(0, np.intp)
    along = boxes[:, 1] - boxes[:, 0]
    quarter = np.rint(np.arctan2(along[:, 1], along[:, 0]) / (np.pi / 2)).astype(int) % 4
    main = int(np.argmax(np.bincount(quarter, weights=np.linalg.norm(along, axis=1), minlength=4)))
    direction = along[quarter == main].sum(axis=0)
    direction /= np.linalg.norm(direction) + 1e-6
    centres = boxes.mean(axis=1)
    x, y = centres @ direction, centres @ np.array([-direction[1], direction[0]], direction.dtype)
    heights = np.linalg.norm(boxes[:, 2] - boxes[:, 1], axis=1)
    order: list[int] = []
    line: list[int] = []
    for i in np.argsort(y, kind="stable"):
        if line and y[i] - y[line].mean() > 0.5 * min(heights[i], heights[line].mean()):
            order.extend(sorted(line, key=lambda k: x[k]))
            line = []
        line.append(int(i))
    order.extend(sorted(line, key=lambda k: x[k]))
    return np.asarray(order, np.intp)


class FindBoxes:
    """Stage `boxes.find`: the detector's map (1, 1, H, W) -> `metadata["ocr.boxes"]`, (n, 4, 2) in picture pixels.

    Options are those of `BoxOptions`, plus `tensor`, the name of the map. The map covers the whole picture, whose size
    `image.decode` left in the metadata. Sets `metadata["ocr.dropped"]`, the number of boxes beyond `max_boxes`.
    """

    def __init__(self, tensor: str = "map", **options: Any) -> None:
        try:
            self._options = BoxOptions(**options)
        except TypeError as error:
            raise ConfigError(f"boxes.find: {error}") from None
        self._tensor = tensor

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        value = payload.tensors.pop(self._tensor, None)
        if value is None or isinstance(value, list) or value.ndim != 4 or value.shape[:2] != (1, 1):
            raise InvalidInput(f"boxes.find: tensor {self._tensor!r} must be a map of shape (1, 1, H, W)")
        boxes, _, dropped = find_boxes(value[0, 0], self._options)
        width, height = payload.metadata["image.width"], payload.metadata["image.height"]
        scale = np.array([width / value.shape[3], height / value.shape[2]], np.float32)
        payload.metadata["ocr.boxes"] = np.clip(boxes * scale, 0, (width, height)).astype(np.float32)
        payload.metadata["ocr.dropped"] = dropped
        return payload
