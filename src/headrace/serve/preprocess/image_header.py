"""What an encoded image claims to be, read from its first bytes: nothing is decoded and no library is needed.

Bytes in -> `ImageHeader` (format, width, height) out, in microseconds. A decompression bomb is a few bytes that claim
a huge picture, so the claim is judged before any decoder runs. Layouts: PNG (RFC 2083, IHDR), JPEG (ITU-T T.81,
SOFn), GIF89a (logical screen descriptor), BMP (DIB header), WebP (RFC 9649: VP8, VP8L, VP8X).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.errors import InvalidInput, UnsupportedMedia

__all__ = ["FORMATS", "ImageHeader", "read_header", "sniff"]

FORMATS = ("jpeg", "png", "webp", "bmp", "gif")

_OTHERS = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"fLaC", "FLAC audio"),
    (b"OggS", "Ogg audio"),
    (b"ID3", "MP3 audio"),
    (b"\x7fELF", "an ELF program"),
    (b"{", "JSON text"),
    (b"<svg", "an SVG drawing"),
    (b"<", "HTML or XML text"),
)

# JPEG markers that carry a frame header: SOF0..SOF15 but DHT (C4), JPG (C8) and DAC (CC).
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format name (one of `FORMATS`) and the size in pixels as stored, before any EXIF rotation."""

    format: str
    width: int
    height: int


def sniff(data: bytes | memoryview) -> str:
    """Name what `data` is from its magic bytes: one of `FORMATS`, or a phrase for an error message."""
    head = bytes(data[:32])
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head[:4] == b"RIFF":
        return "webp" if head[8:12] == b"WEBP" else "WAV audio" if head[8:12] == b"WAVE" else "a RIFF file"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if head[:2] == b"BM":
        return "bmp"
    if head[4:8] == b"ftyp":
        return "a HEIF/AVIF image or MP4 file"
    if not head:
        return "nothing (0 bytes)"
    for magic, name in _OTHERS:
        if head.lstrip().startswith(magic):
            return name
    if all(32 <= byte < 127 or byte in (9, 10, 13) for byte in head):
        return "plain text"
    return f"unknown data starting with {head[:8].hex(' ')}"


def read_header(data: bytes | memoryview, formats: tuple[str, ...] = FORMATS) -> ImageHeader:
    """Read the header of an encoded image.

    Raises:
        UnsupportedMedia: `data` is not in one of `formats`; the message names what it is and what is accepted.
        InvalidInput: it is empty, or its header is cut off or claims an empty picture.
    """
    if not data:
        raise InvalidInput(f"image: expected {_listed(formats)}, got nothing (0 bytes)")
    kind = sniff(data)
    if kind not in formats:
        raise UnsupportedMedia(f"image: expected {_listed(formats)}, got {kind}")
    view = memoryview(data)
    try:
        width, height = _READERS[kind](view)
    except (struct.error, IndexError):
        raise InvalidInput(f"image: the {kind} header is cut off or damaged ({len(view)} bytes came)") from None
    if width < 1 or height < 1:
        raise InvalidInput(f"image: the {kind} header claims {width}x{height} pixels")
    return ImageHeader(kind, width, height)


def _listed(formats: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(formats[:-1]), formats[-1])))


def _png(view: memoryview) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", view, 16)
    return width, height


def _gif(view: memoryview) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", view, 6)
    return width, height


def _bmp(view: memoryview) -> tuple[int, int]:
    (size,) = struct.unpack_from("<I", view, 14)
    width, height = struct.unpack_from("<HH", view, 18) if size == 12 else struct.unpack_from("<ii", view, 18)
    return width, abs(height)


def _jpeg(view: memoryview) -> tuple[int, int]:
    at = 2
    while True:
        if view[at] != 0xFF:
            raise IndexError("marker expected")
        while view[at] == 0xFF:
            at += 1
        marker = view[at]
        at += 1
        if marker in _STANDALONE:
            continue
        if marker in _SOF:
            height, width = struct.unpack_from(">HH", view, at + 3)
            return width, height
        (length,) = struct.unpack_from(">H", view, at)
        at += max(length, 2)


def _webp(view: memoryview) -> tuple[int, int]:
    chunk = bytes(view[12:16])
    if chunk == b"VP8X":
        width, high_w, height, high_h = struct.unpack_from("<HBHB", view, 24)
        return (width | high_w << 16) + 1, (height | high_h << 16) + 1
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", view, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", view, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise IndexError("unknown WebP chunk")


_READERS = {"png": _png, "gif": _gif, "bmp": _bmp, "jpeg": _jpeg, "webp": _webp}
