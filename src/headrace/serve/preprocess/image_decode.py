"""`image.decode`: encoded bytes in, one upright 8-bit picture out.

`payload.data` -> `payload.tensors["image"]`, uint8 (1, H, W, C). EXIF orientation is applied, alpha is laid over
`background`, 16-bit samples are scaled to 8 bits, CMYK and palettes become RGB, of an animation the first frame counts.
"""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import ConfigError, InvalidInput, PayloadTooLarge
from headrace.serve.preprocess.image_header import FORMATS, read_header
from headrace.serve.protocol import Array, Payload

__all__ = ["Decode", "decode_image"]

Channels = Literal["rgb", "bgr", "grey"]


def decode_image(
    data: bytes | memoryview,
    *,
    channels: Channels = "rgb",
    max_pixels: int = 40_000_000,
    formats: tuple[str, ...] = FORMATS,
    background: int = 255,
) -> Array:
    """Decode one image to uint8 (H, W, C), C = 3 or 1 ("grey").

    Raises:
        PayloadTooLarge: the header claims more than `max_pixels`; told before anything is decoded.
        UnsupportedMedia: not one of `formats`; the message names what came instead.
        InvalidInput: empty, cut off or damaged.
        MissingExtra: Pillow is not installed.
    """
    header = read_header(data, formats)
    if header.width * header.height > max_pixels:
        raise PayloadTooLarge(
            f"image: {header.width}x{header.height} is {header.width * header.height} pixels; the limit is {max_pixels}"
        )
    image_module = require("PIL.Image", "vision")
    ops = require("PIL.ImageOps", "vision")
    try:
        with image_module.open(io.BytesIO(data), formats=[header.format.upper()]) as image:
            if image.width * image.height > max_pixels:  # a header that two readers see differently
                raise PayloadTooLarge(f"image: {image.width}x{image.height} pixels; the limit is {max_pixels}")
            image.load()
            pixels = _to_pixels(ops.exif_transpose(image), image_module, channels, background)
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:  # decoders raise OSError, ValueError, SyntaxError, EOFError, struct.error, …
        raise InvalidInput(f"image: the {header.format} data is cut off or damaged: {error}") from error
    return pixels


def _to_pixels(image: Any, image_module: Any, channels: Channels, background: int) -> Array:
    mode = image.mode
    if mode.startswith("I") or mode == "F":
        wide = np.asarray(image).astype(np.float32)
        # 16-bit samples arrive as "I;16" (or "I" from older decoders); 257 maps 65535 to 255 exactly.
        image = image_module.fromarray(np.clip(np.rint(wide / 257.0), 0, 255).astype(np.uint8))
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas = image_module.new("RGBA", rgba.size, (background, background, background, 255))
        image = image_module.alpha_composite(canvas, rgba)
    if channels == "grey":
        return np.array(image.convert("L"))[:, :, None]
    pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
    return np.ascontiguousarray(pixels[:, :, ::-1]) if channels == "bgr" else pixels


class Decode:
    """Stage `image.decode`.

    Args:
        channels: Order of the last axis: "rgb", "bgr" or "grey" (C = 1).
        max_pixels: Width x height above which the request is refused, before decoding.
        formats: Accepted formats, a subset of jpeg, png, webp, bmp, gif.
        background: Grey level (0..255) laid under transparent pixels.
        output: Name of the tensor written.

    Sets `metadata["image.width"]` and `["image.height"]`, the size of the upright picture in pixels.
    """

    def __init__(
        self,
        channels: Channels = "rgb",
        max_pixels: int = 40_000_000,
        formats: list[str] | None = None,
        background: int = 255,
        output: str = "image",
    ) -> None:
        if channels not in ("rgb", "bgr", "grey"):
            raise ConfigError(f"image.decode: channels must be rgb, bgr or grey, got {channels!r}")
        if max_pixels < 1 or not 0 <= background <= 255:
            raise ConfigError(
                f"image.decode: max_pixels must be positive and background within 0..255, "
                f"got {max_pixels} and {background}"
            )
        unknown = sorted(set(formats or ()) - set(FORMATS))
        if unknown or formats == []:
            raise ConfigError(f"image.decode: formats must be some of {', '.join(FORMATS)}, got {formats}")
        self._channels: Channels = channels
        self._max_pixels = max_pixels
        self._formats = tuple(formats) if formats else FORMATS
        self._background = background
        self._output = output

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        pixels = decode_image(
            payload.data,
            channels=self._channels,
            max_pixels=self._max_pixels,
            formats=self._formats,
            background=self._background,
        )
        payload.tensors[self._output] = pixels[None]
        payload.metadata["image.height"], payload.metadata["image.width"] = pixels.shape[:2]
        payload.data = b""  # the encoded bytes are not needed any more; let them go while the models run
        return payload
