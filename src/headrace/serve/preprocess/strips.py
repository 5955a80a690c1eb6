"""Strips: single lines of text, cut upright out of a picture and made into what a recogniser reads well.

A picture and an oriented box -> a strip (`cut_strip`); a strip -> pieces cut at word gaps, squeezed (`split_strip`,
`squeeze_strip`); pixels -> the model's numbers (`to_model_range`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.serve.preprocess.image import resize_image
from headrace.serve.protocol import Array

__all__ = ["cut_strip", "split_strip", "squeeze_strip", "to_model_range"]


def to_model_range(image: Array, width: int = 0) -> Array:
    """uint8 (H, W, C) -> float32 (C, H, max(W, width)) in -1..1; columns beyond the image are 0 (mid-grey)."""
    height, have, channels = image.shape
    rows = np.zeros((channels, height, max(have, width)), np.float32)
    inside = rows[:, :, :have]
    np.multiply(image.transpose(2, 0, 1), np.float32(1 / 127.5), out=inside)
    inside -= 1.0
    return rows


def cut_strip(image: Array, box: Array, height: int) -> Array:
    """Cut the oriented rectangle `box` (4, 2) out of (H, W, C) and scale it to `height`, keeping its aspect.

    An upright box is a slice; any other one is turned upright first, at its own size.
    """
    cv2 = require("cv2", "vision")
    along, across = box[1] - box[0], box[3] - box[0]
    if abs(along[1]) < 0.5 and abs(across[0]) < 0.5 and along[0] > 0 and across[1] > 0:
        have_h, have_w = image.shape[:2]
        left, top = min(max(0, round(float(box[0][0]))), have_w - 1), min(max(0, round(float(box[0][1]))), have_h - 1)
        right, bottom = max(left + 1, round(float(box[2][0]))), max(top + 1, round(float(box[2][1])))
        strip = image[top:bottom, left:right]
    else:
        wide, tall = max(1, round(float(np.hypot(*along)))), max(1, round(float(np.hypot(*across))))
        upright = np.array([[0, 0], [wide, 0], [0, tall]], np.float32)
        matrix = cv2.getAffineTransform(np.ascontiguousarray(box[[0, 1, 3]], np.float32), upright)
        strip = cv2.warpAffine(image, matrix, (wide, tall), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    width = max(1, int(np.ceil(height * strip.shape[1] / strip.shape[0])))
    return resize_image(strip, width, height)


def squeeze_strip(strip: Array, factor: float, floor: int) -> Array:
    """Narrow a strip to `factor` of its width, but not below `floor` pixels; a narrower strip stays as it is."""
    height, width = strip.shape[:2]
    return strip if width <= floor else resize_image(strip, max(floor, round(width * factor)), height)


def split_strip(strip: Array, max_width: int, min_gap: int = 6) -> list[Array]:
    """Cut a long strip (H, W, C) at gaps between words into pieces of about equal width, at most `max_width` each.

    Only columns without ink, at least `min_gap` of them in a row, are cut; where there are none, a piece stays longer.
    """
    width = strip.shape[1]
    if width <= max_width:
        return [strip]
    middles, sizes = _gaps(strip, min_gap)
    pieces = []
    start = 0
    while width - start > max_width:
        ideal = start + (width - start) / -(-(width - start) // max_width)
        # Prefer clear gaps, near the ideal place; a gap too far out is taken only when no other one is left.
        worth = np.minimum(sizes, 3 * min_gap) - np.abs(middles - ideal) * 0.05
        allowed = (middles > start + max_width // 3) & (middles < width - max_width // 8)
        near = allowed & (middles <= start + max_width)
        if near.any():
            cut = int(middles[near][np.argmax(worth[near])])
        elif allowed.any():
            cut = int(middles[allowed][0])
        else:
            break
        pieces.append(strip[:, start:cut])
        start = cut
    return [*pieces, strip[:, start:]]


def _gaps(strip: Array, min_gap: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Middles and sizes of the runs of at least `min_gap` columns with no more vertical contrast than the paper has."""
    cv2 = require("cv2", "vision")
    grey = cv2.cvtColor(strip, cv2.COLOR_BGR2GRAY)
    ink = cv2.absdiff(grey[1:], grey[:-1]).mean(axis=0)
    # Paper is the clearest stretch of the length of a gap; were there none, it would look like the text itself.
    paper, typical = np.convolve(ink, np.full(min_gap, 1 / min_gap), "valid").min(), np.percentile(ink, 60)
    if paper > 0.8 * typical:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    blank = np.concatenate(([False], ink <= paper + 0.25 * (typical - paper), [False]))
    edges = np.flatnonzero(np.diff(blank))
    starts, ends = edges[::2], edges[1::2]
    wide = ends - starts >= min_gap
    return (starts[wide] + ends[wide]) // 2, (ends - starts)[wide]
