"""Pictures of known text, for tests and benchmarks: the same seed gives the same picture on any machine.

A `PageSpec` (size, font, angle, background, contrast) and a seed in -> `TextImage` (pixels, and every line with its
text and its four corners) out. The font is the one inside Pillow, so nothing has to be installed; further TrueType
files may be named.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.errors import ConfigError

__all__ = [
    "PAGES",
    "PageSpec",
    "TextImage",
    "TextLine",
    "character_errors",
    "edit_distance",
    "encode_image",
    "render_page",
]

_WORDS = (
    "the of and to in is that for it was on are with they be at one have this from by hot word but what some we can "
    "out other were all there when up use your how said an each she which do their time if will way about many then "
    "them write would like so these her long make thing see him two has look more day could go come did number sound "
    "most people over know water than call first who may down side been now find any new work part take get place "
    "made live where after back little only round man year came show every good give our under name very through "
    "just form sentence great think help low line differ turn cause much mean before move right boy old too same "
    "Invoice Total Amount Balance Payment Quantity Reference Customer Delivery Receipt Warehouse Station Platform "
    "Saturday October Paris Berlin Tokyo Engine Voltage Temperature Pressure Chapter Figure Section Department"
)

Background = Literal["plain", "gradient", "noise", "photo"]


@dataclass(frozen=True, slots=True)
class PageSpec:
    """How a page looks. Sizes in pixels before rotation; `angle` in degrees, counter-clockwise.

    `contrast` is the distance between ink and paper, 0..1; `dark` swaps them. `jpeg` is the quality that the picture
    is stored at once (0: never compressed). `font` is a TrueType file, or "" for the font inside Pillow.
    """

    name: str
    width: int = 800
    height: int = 600
    size: int = 20
    angle: float = 0.0
    background: Background = "plain"
    contrast: float = 0.9
    dark: bool = False
    lines: int = 0
    """Number of lines; 0 fills the page."""
    line_gap: float = 1.7
    jpeg: int = 0
    font: str = ""


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line and its corners (x, y), clockwise from the text's own top-left."""

    text: str
    box: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class TextImage:
    """A rendered page: `pixels` uint8 (H, W, 3) RGB, `lines` in reading order."""

    spec: PageSpec
    pixels: npt.NDArray[np.uint8]
    lines: tuple[TextLine, ...] = field(default=())

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


PAGES = (
    PageSpec("page"),
    PageSpec("dense", width=900, height=700, size=16, line_gap=1.5),
    PageSpec("small", width=640, height=480, size=12),
    PageSpec("tiny", width=480, height=320, size=10),
    PageSpec("large", width=1280, height=900, size=48),
    PageSpec("scan", width=1240, height=1000, size=24, jpeg=60),
    PageSpec("receipt", width=320, height=640, size=16),
    PageSpec("banner", width=640, height=48, size=26, lines=1),
    PageSpec("tilted", angle=5.0),
    PageSpec("steep", angle=-13.0, size=22),
    PageSpec("upside-down", angle=180.0),
    PageSpec("quarter-turn", angle=90.0, width=640, height=480, size=22),
    PageSpec("gradient", background="gradient"),
    PageSpec("noise", background="noise", size=22),
    PageSpec("photo", background="photo", size=30, lines=6),
    PageSpec("sign", background="photo", size=56, lines=3, width=1024, height=768, jpeg=70),
    PageSpec("faint", contrast=0.22),
    PageSpec("dark", dark=True),
    PageSpec("jpeg", jpeg=25, size=18),
    PageSpec("label", width=300, height=220, size=18, lines=5),
)
"""The standard set: plain pages, and each thing that makes reading hard, one at a time."""


def render_page(spec: PageSpec, seed: int = 0) -> TextImage:
    """Draw `spec` with text and background chosen by `seed`. Raises `MissingExtra` without Pillow."""
    image_module, draw_module, font_module = (
        require(f"PIL.{name}", "vision") for name in ("Image", "ImageDraw", "ImageFont")
    )
    if spec.size < 6 or spec.width < 16 or spec.height < spec.size:
        raise ConfigError(
            f"page {spec.name!r}: {spec.width}x{spec.height} with size {spec.size} leaves no room for text"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seed, *spec.name.encode()]))
    font = font_module.truetype(spec.font, spec.size) if spec.font else font_module.load_default(spec.size)
    ink = image_module.new("L", (spec.width, spec.height), 0)
    draw = draw_module.Draw(ink)
    margin = max(4, round(spec.size * 0.6))
    step = round(spec.size * spec.line_gap)
    room = max(1, (spec.height - 2 * margin + step - round(spec.size * 1.3)) // step)
    flat: list[tuple[str, tuple[float, ...]]] = []
    for row in range(min(spec.lines or room, room)):
        left = margin + (int(rng.integers(0, spec.size * 2)) if spec.width > spec.size * 12 else 0)
        text = _sentence(rng, font, spec.width - margin - left)
        if not text:
            continue
        top = margin + row * step
        draw.text((left, top), text, fill=255, font=font)
        flat.append((text, draw.textbbox((left, top), text, font=font)))
    turned = ink.rotate(spec.angle, resample=image_module.Resampling.BICUBIC, expand=True)
    lines = tuple(TextLine(text, _corners(box, ink.size, turned.size, spec.angle)) for text, box in flat)
    pixels = _compose(np.asarray(turned, np.float32) / 255.0, spec, rng)
    if spec.jpeg:
        with image_module.open(io.BytesIO(encode_image(pixels, "jpeg", quality=spec.jpeg))) as stored:
            pixels = np.array(stored.convert("RGB"))
    return TextImage(spec, pixels, lines)


def encode_image(pixels: npt.NDArray[np.uint8], format: str = "png", **options: Any) -> bytes:
    """Encode uint8 (H, W, 3) RGB, (H, W, 4) RGBA or (H, W) grey with Pillow; `options` go to its writer."""
    out = io.BytesIO()
    require("PIL.Image", "vision").fromarray(pixels).save(out, format=format, **options)
    return out.getvalue()


def edit_distance(expected: Sequence[Any], got: Sequence[Any]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions that turn `got` into `expected`."""
    previous = list(range(len(got) + 1))
    for i, want in enumerate(expected, 1):
        current = [i]
        for j, have in enumerate(got, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (want != have)))
        previous = current
    return previous[-1]


def character_errors(
    truth: Sequence[TextLine], found: Sequence[tuple[str, Any]], *, spaces: bool = True
) -> tuple[int, int]:
    """(edits, characters) between the true lines and what was found, `(text, four corners)` a piece, in any order.

    A piece belongs to the true line whose band its centre lies in; pieces of one line are joined along it. Pieces
    outside every line count as insertions, lines without a piece as deletions. Without `spaces`, blanks do not count.
    """
    pieces: list[list[tuple[float, str]]] = [[] for _ in truth]
    edits = 0
    for text, corners in found:
        centre = np.asarray(corners, np.float64).mean(axis=0)
        nearest: tuple[float, int, float] | None = None
        for i, line in enumerate(truth):
            box = np.asarray(line.box, np.float64)
            along, height = box[1] - box[0], float(np.hypot(*(box[3] - box[0])))
            length = float(np.hypot(*along))
            along /= length
            x = float((centre - box[0]) @ along)
            off = abs(float((centre - box.mean(axis=0)) @ np.array([-along[1], along[0]])))
            if -height <= x <= length + height and off <= 0.75 * height and (nearest is None or off < nearest[0]):
                nearest = (off, i, x)
        if nearest is None:
            edits += len(text)
        else:
            pieces[nearest[1]].append((nearest[2], text))
    total = 0
    for line, parts in zip(truth, pieces, strict=True):
        want, got = line.text, " ".join(text for _, text in sorted(parts))
        if not spaces:
            want, got = want.replace(" ", ""), got.replace(" ", "")
        edits += edit_distance(want, got)
        total += len(want)
    return edits, total


def _sentence(rng: np.random.Generator, font: Any, width: int) -> str:
    """Words, numbers, prices and addresses up to `width` pixels (a ragged right edge now and then)."""
    limit = width * (1.0 if rng.random() < 0.7 else float(rng.uniform(0.4, 0.9)))
    vocabulary = _WORDS.split()
    words: list[str] = []
    while True:
        kind = rng.random()
        if kind < 0.80:
            word = str(rng.choice(vocabulary))
            if not words:
                word = word[0].upper() + word[1:]
        elif kind < 0.87:
            word = str(rng.integers(1, 100000))
        elif kind < 0.91:
            word = f"${rng.integers(1, 999)}.{rng.integers(0, 100):02d}"
        elif kind < 0.95:
            word = f"{rng.integers(1, 29):02d}/{rng.integers(1, 13):02d}/{rng.integers(1990, 2040)}"
        elif kind < 0.98:
            word = f"{rng.choice(vocabulary)},"
        else:
            word = f"{str(rng.choice(vocabulary)).lower()}@{str(rng.choice(vocabulary)).lower()}.com"
        if font.getlength(" ".join([*words, word])) > limit:
            return " ".join(words)
        words.append(word)


def _corners(
    box: tuple[float, ...], before: tuple[int, int], after: tuple[int, int], angle: float
) -> tuple[tuple[float, float], ...]:
    """Corners of an upright box after the page was turned about its centre (y points down)."""
    left, top, right, bottom = box
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    turned = []
    for x, y in ((left, top), (right, top), (right, bottom), (left, bottom)):
        dx, dy = x - before[0] / 2, y - before[1] / 2
        turned.append((dx * cos + dy * sin + after[0] / 2, -dx * sin + dy * cos + after[1] / 2))
    return tuple(turned)


def _compose(ink: npt.NDArray[np.float32], spec: PageSpec, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Lay `ink` (H, W) in 0..1 on a paper of its own."""
    height, width = ink.shape
    texture = np.zeros((height, width, 3), np.float32)
    if spec.background == "gradient":
        slope = (
            np.linspace(-0.2, 0.2, width, dtype=np.float32)
            + np.linspace(-0.15, 0.15, height, dtype=np.float32)[:, None]
        )
        texture += slope[:, :, None] * np.array([1.0, 0.6, -0.4], np.float32)
    elif spec.background == "noise":
        texture += rng.normal(0.0, 0.1, (height, width, 1)).astype(np.float32)
    elif spec.background == "photo":
        texture += _scene(height, width, rng)
    tint = rng.uniform(-0.03, 0.03, 3).astype(np.float32)
    half = spec.contrast / 2
    paper, stroke = (0.5 - half, 0.5 + half) if spec.dark else (0.5 + half, 0.5 - half)
    page = np.clip(paper + texture + tint, 0.0, 1.0)
    page += ink[:, :, None] * (stroke - page)
    pixels: npt.NDArray[np.uint8] = np.rint(np.clip(page, 0.0, 1.0) * 255).astype(np.uint8)
    return pixels


def _scene(height: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Smooth coloured blobs at three scales and a few hard-edged patches, about -0.35..0.1: something like a photo."""
    image_module = require("PIL.Image", "vision")
    scene = np.zeros((height, width, 3), np.float32)
    for cells, gain in ((3, 0.16), (9, 0.09), (40, 0.04)):
        coarse = rng.uniform(0, 255, (cells, max(1, cells * width // height), 3)).astype(np.uint8)
        smooth = image_module.fromarray(coarse).resize((width, height), image_module.Resampling.BICUBIC)
        scene += (np.asarray(smooth, np.float32) / 255.0 - 0.7) * (2 * gain)
    for _ in range(5):
        top, left = int(rng.integers(0, height)), int(rng.integers(0, width))
        scene[top : top + height // 4, left : left + width // 5] += rng.uniform(-0.1, 0.05, 3).astype(np.float32)
    return scene
