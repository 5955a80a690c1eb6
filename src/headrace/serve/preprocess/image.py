"""Operators on decoded pictures: `image.resize`, `image.crop`, `image.normalise`, `image.layout`.

Each takes `payload.tensors[tensor]` — uint8 or float32 (N, H, W, C) — and puts its result back under the same name.
They know nothing of any particular model; a classifier is decode -> resize -> crop -> normalise -> layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.protocol import Array, Payload

__all__ = ["CentreCrop", "Layout", "Normalise", "Resize", "resize_image"]

Filter = Literal["bilinear", "bicubic", "area"]
_FILTERS = ("bilinear", "bicubic", "area")


def _pictures(payload: Payload, name: str, op: str) -> Array:
    """The tensor `name`, checked to be (N, H, W, C) with something in it."""
    value = payload.tensors.get(name)
    if value is None:
        raise InvalidInput(f"{op}: needs tensor {name!r}; the payload has: {', '.join(payload.tensors) or 'none'}")
    if isinstance(value, list) or value.ndim != 4 or 0 in value.shape:
        shape = "ragged rows" if isinstance(value, list) else str(value.shape)
        raise InvalidInput(f"{op}: tensor {name!r} must be (N, H, W, C) and not empty, got {shape}")
    return value


def resize_image(
    image: Array, width: int, height: int, filter: Filter = "bilinear", *, antialias: bool = True
) -> Array:
    """Resize (H, W, C) to (height, width, C), same dtype.

    With `antialias`, an axis that shrinks is averaged over its whole footprint (area weights) before anything else,
    so that thin strokes fade instead of vanishing; "area" does this always.
    """
    cv2 = require("cv2", "vision")
    have_h, have_w = image.shape[:2]
    if (have_w, have_h) == (width, height):
        return image
    shrinks = width <= have_w and height <= have_h
    if (filter == "area" or antialias) and shrinks:
        mode = cv2.INTER_AREA
    else:
        mode = cv2.INTER_CUBIC if filter == "bicubic" else cv2.INTER_LINEAR
        if antialias and (width < have_w or height < have_h):  # one axis grows: shrink the other one first
            image = cv2.resize(image, (min(width, have_w), min(height, have_h)), interpolation=cv2.INTER_AREA)
    resized: Array = cv2.resize(image, (width, height), interpolation=mode)
    return resized.reshape(height, width, -1)


class Resize:
    """Stage `image.resize`.

    Args:
        width, height: Target in pixels. With `keep_aspect` one of them may be left 0.
        keep_aspect: "fit" (default None: off) makes the picture fit inside width x height, "cover" makes it cover it.
        multiple_of: Round each side to the nearest positive multiple.
        filter: "bilinear", "bicubic" or "area".
        antialias: Average over the footprint of shrinking axes.
    """

    def __init__(
        self,
        width: int = 0,
        height: int = 0,
        keep_aspect: Literal["fit", "cover"] | None = None,
        multiple_of: int = 1,
        filter: Filter = "bilinear",
        antialias: bool = True,
        tensor: str = "image",
    ) -> None:
        if width < 0 or height < 0 or (width == 0 and height == 0) or (keep_aspect is None and 0 in (width, height)):
            raise ConfigError(
                f"image.resize: give width and height (one may be 0 with keep_aspect), got {width}x{height}"
            )
        if keep_aspect not in (None, "fit", "cover"):
            raise ConfigError(f"image.resize: keep_aspect must be fit or cover, got {keep_aspect!r}")
        if filter not in _FILTERS or multiple_of < 1:
            raise ConfigError(
                f"image.resize: filter must be one of {', '.join(_FILTERS)} and multiple_of >= 1, "
                f"got {filter!r} and {multiple_of}"
            )
        self._width, self._height, self._keep = width, height, keep_aspect
        self._multiple, self._filter, self._antialias, self._tensor = multiple_of, filter, antialias, tensor

    def target(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) that a picture of this size is resized to."""
        want_w, want_h = self._width, self._height
        if self._keep is not None:
            scales = [want / have for want, have in ((want_w, width), (want_h, height)) if want]
            scale = min(scales) if self._keep == "fit" else max(scales)
            want_w, want_h = round(width * scale), round(height * scale)
        step = self._multiple
        return max(step, round(want_w / step) * step), max(step, round(want_h / step) * step)

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        images = _pictures(payload, self._tensor, "image.resize")
        width, height = self.target(images.shape[2], images.shape[1])
        payload.tensors[self._tensor] = np.stack(
            [resize_image(image, width, height, self._filter, antialias=self._antialias) for image in images]
        )
        return payload


class CentreCrop:
    """Stage `image.crop`: the middle width x height pixels; a smaller picture is refused."""

    inline = True

    def __init__(self, width: int, height: int, tensor: str = "image") -> None:
        if width < 1 or height < 1:
            raise ConfigError(f"image.crop: width and height must be positive, got {width}x{height}")
        self._width, self._height, self._tensor = width, height, tensor

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        images = _pictures(payload, self._tensor, "image.crop")
        have_h, have_w = images.shape[1:3]
        if have_w < self._width or have_h < self._height:
            raise InvalidInput(f"image.crop: wants {self._width}x{self._height}, the picture is {have_w}x{have_h}")
        top, left = (have_h - self._height) // 2, (have_w - self._width) // 2
        payload.tensors[self._tensor] = images[:, top : top + self._height, left : left + self._width]
        return payload


class Normalise:
    """Stage `image.normalise`: float32 `(x * scale - mean) / std`, per channel of the last axis.

    `mean` and `std` hold one value for all channels or one a channel; `scale` defaults to 1/255.
    """

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        scale: float = 1 / 255,
        tensor: str = "image",
    ) -> None:
        means, stds = np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(std, np.float64))
        if means.ndim != 1 or stds.ndim != 1 or not np.isfinite(means).all() or not (stds > 0).all():
            raise ConfigError(f"image.normalise: mean must be finite and std positive, got {mean} and {std}")
        self._gain = (scale / stds).astype(np.float32)
        self._bias = (-means / stds).astype(np.float32)
        self._tensor = tensor

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        images = _pictures(payload, self._tensor, "image.normalise")
        for values in (self._gain, self._bias):
            if values.size not in (1, images.shape[3]):
                raise InvalidInput(
                    f"image.normalise: {values.size} mean/std values for a picture of {images.shape[3]} channels"
                )
        normalised = np.multiply(images, self._gain, dtype=np.float32)
        normalised += self._bias
        payload.tensors[self._tensor] = normalised
        return payload


class Layout:
    """Stage `image.layout`: reorder (N, H, W, C) to `order` "nchw" (contiguous), or leave it at "nhwc"."""

    def __init__(self, order: Literal["nchw", "nhwc"] = "nchw", tensor: str = "image") -> None:
        if order not in ("nchw", "nhwc"):
            raise ConfigError(f"image.layout: order must be nchw or nhwc, got {order!r}")
        self._order, self._tensor = order, tensor

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        images = _pictures(payload, self._tensor, "image.layout")
        axes: Any = (0, 3, 1, 2) if self._order == "nchw" else (0, 1, 2, 3)
        payload.tensors[self._tensor] = np.ascontiguousarray(images.transpose(axes))
        return payload
