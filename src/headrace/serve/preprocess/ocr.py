"""What the text detector and the text recogniser want to see.

A decoded picture -> the detector's input (`ocr.page`); picture and boxes -> upright strips, each one line of text at
the recogniser's height (`ocr.strips`). Both models take (pixel / 255 - 0.5) / 0.5, channels first.
"""

from __future__ import annotations

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.preprocess.image import resize_image
from headrace.serve.preprocess.strips import cut_strip, to_model_range
from headrace.serve.protocol import Array, Payload

__all__ = ["Page", "Strips", "page_size"]


def page_size(width: int, height: int, min_side: int, max_side: int, multiple_of: int = 32) -> tuple[int, int]:
    """Size at which a picture is shown to the detector.

    The shorter side is brought up to `min_side`, then the longer one down to `max_side`; each is rounded to a multiple.
    """
    scale = max(1.0, min_side / min(width, height))
    scale = min(scale, max_side / max(width, height))
    sides = (max(multiple_of, round(side * scale / multiple_of) * multiple_of) for side in (width, height))
    return next(sides), next(sides)


class Page:
    """Stage `ocr.page`: `tensors["image"]` uint8 (1, H, W, 3) -> `tensors[output]` float32 (1, 3, h, w)."""

    def __init__(self, min_side: int = 736, max_side: int = 2000, tensor: str = "image", output: str = "page") -> None:
        if not 32 <= min_side <= max_side:
            raise ConfigError(f"ocr.page: wants 32 <= min_side <= max_side, got {min_side} and {max_side}")
        self._min_side, self._max_side, self._tensor, self._output = min_side, max_side, tensor, output

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        image = _picture(payload, self._tensor, "ocr.page")
        width, height = page_size(image.shape[1], image.shape[0], self._min_side, self._max_side)
        page = resize_image(image, width, height)
        payload.tensors[self._output] = to_model_range(page)[None]
        return payload


class Strips:
    """Stage `ocr.strips`: picture and `metadata["ocr.boxes"]` -> strips, and what the angle classifier looks at.

    The classifier was trained on short words: a long line squeezed into its input is taken for upside-down about one
    time in four. So a long strip is shown to it as `windows` pieces, each squeezed at most `squeeze` times.

    Writes `metadata["ocr.strips"]`, a list of uint8 (height, w, 3); `metadata["ocr.windows"]`, the number of windows of
    each; and `tensors[output]`, float32 (windows of all strips, 3, height, angle_width).
    """

    def __init__(
        self,
        height: int = 48,
        angle_width: int = 192,
        windows: int = 2,
        squeeze: float = 1.5,
        tensor: str = "image",
        output: str = "angle_rows",
    ) -> None:
        if min(height, angle_width) < 8 or windows < 1 or squeeze < 1:
            raise ConfigError(
                f"ocr.strips: wants height and angle_width >= 8, windows and squeeze >= 1, "
                f"got {height}, {angle_width}, {windows} and {squeeze}"
            )
        self._height, self._angle_width, self._tensor, self._output = height, angle_width, tensor, output
        self._windows, self._window_width = windows, round(angle_width * squeeze)

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        image = _picture(payload, self._tensor, "ocr.strips")
        strips = [cut_strip(image, box, self._height) for box in payload.metadata["ocr.boxes"]]
        windows = [self._looks(strip) for strip in strips]
        payload.metadata["ocr.strips"] = strips
        payload.metadata["ocr.windows"] = [len(part) for part in windows]
        payload.tensors[self._output] = np.stack([look for part in windows for look in part]) if windows else []
        return payload

    def _looks(self, strip: Array) -> list[Array]:
        """The strip as the classifier sees it: whole if it is short, else pieces spread evenly over it."""
        spare = strip.shape[1] - self._window_width
        if spare <= 0:
            pieces = [strip]
        else:
            starts = (round(spare * (i + 1) / (self._windows + 1)) for i in range(self._windows))
            pieces = [strip[:, start : start + self._window_width] for start in starts]
        width = self._angle_width
        return [to_model_range(resize_image(p, min(p.shape[1], width), self._height), width) for p in pieces]


def _picture(payload: Payload, name: str, op: str) -> Array:
    value = payload.tensors.get(name)
    if value is None or isinstance(value, list) or value.ndim != 4 or value.shape[0] != 1 or value.shape[3] != 3:
        raise InvalidInput(f"{op}: tensor {name!r} must be one picture of shape (1, H, W, 3)")
    picture: Array = value[0]
    return picture
