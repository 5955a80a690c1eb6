"""Learning curves as a picture: what was reached after how many steps in, a PNG out.

A curve may be of several runs: then their mean is drawn, and a band from the lowest to the highest.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.core.extras import require
from headrace.errors import InvalidInput
from headrace.rl.log import read_events

__all__ = ["EPISODES", "EVALUATION", "Curve", "History", "draw_curves", "read_history"]

EPISODES, EVALUATION = "episodes", "evaluation"
"""What a run reached: the mean return of its last 100 episodes, and of its evaluations."""

_SIZE = (720, 420)
_MARGIN = (70, 20, 20, 50)  # left, top, right, bottom
_SCALE = 2  # drawn so many times as large and shrunk: smooth edges
_COLOURS = ((31, 111, 180), (222, 120, 30), (60, 150, 70), (170, 60, 140))
_GREY, _BLACK = (215, 215, 215), (60, 60, 60)
_POINTS = 300  # of a band


@dataclass(frozen=True)
class Curve:
    """`runs`: of each its steps and what was reached by then, both [k], steps ascending; other numbers than finite ones
    are left out."""

    label: str
    runs: Sequence[tuple[ArrayLike, ArrayLike]]


class History:
    """What a run reached, in bounded memory: from some thousand points on every second one is dropped."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._kept: dict[str, tuple[list[int], list[float]]] = {}

    def add(self, label: str, steps: int, value: float) -> None:
        x, y = self._kept.setdefault(label, ([], []))
        x.append(steps)
        y.append(value)
        if len(x) > self._most:
            del x[1:-1:2], y[1:-1:2]

    def cut(self, steps: int) -> None:
        """Forget what was reached at `steps` and after."""
        for x, y in self._kept.values():
            first = bisect_left(x, steps)
            del x[first:], y[first:]

    def curves(self) -> list[Curve]:
        return [Curve(label, [run]) for label, run in self._kept.items()]


def read_history(folder: Path, *, until: int | None = None) -> History:
    """What the log of a run has, of at most `until` steps. Where the run was gone on with from an earlier step, what
    had come after that is left out."""
    history = History()
    for file in read_events(folder):
        first = True
        for steps, numbers in file:
            if first:
                history.cut(steps)
                first = False
            for label, name in ((EPISODES, "rollout/mean_return"), (EVALUATION, "eval/mean_return")):
                if name in numbers:
                    history.add(label, steps, numbers[name])
    if until is not None:
        history.cut(until + 1)
    return history


def draw_curves(curves: Sequence[Curve], *, title: str = "", y_label: str = "return") -> bytes:
    """A PNG of 720 x 420 pixels. Raises `InvalidInput` without anything to draw, `MissingExtra` without pillow."""
    drawn = [(curve.label, [run for run in map(_finite, curve.runs) if len(run[0])]) for curve in curves]
    drawn = [(label, runs) for label, runs in drawn if runs]
    if not drawn:
        raise InvalidInput("curves: expected at least one with a finite point")
    xs = np.concatenate([run[0] for _, runs in drawn for run in runs])
    ys = np.concatenate([run[1] for _, runs in drawn for run in runs])
    picture = _Picture((0.0, float(xs.max()) or 1.0), (float(ys.min()), float(ys.max())), title, y_label)
    for number, (label, runs) in enumerate(drawn):
        picture.curve(runs, _COLOURS[number % len(_COLOURS)])
        picture.legend(label, number, _COLOURS[number % len(_COLOURS)])
    return picture.png()


def _finite(run: tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(run[0], np.float64), np.asarray(run[1], np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InvalidInput(f"curve: expected as many steps as values, got {list(x.shape)} and {list(y.shape)}")
    kept = np.isfinite(x) & np.isfinite(y)
    return x[kept], y[kept]


class _Picture:
    def __init__(self, x: tuple[float, float], y: tuple[float, float], title: str, y_label: str) -> None:
        image = require("PIL.Image", "rl")
        self._shrunk = image.Resampling.LANCZOS
        self._image: Any = image.new("RGB", (_SIZE[0] * _SCALE, _SIZE[1] * _SCALE), "white")
        self._draw: Any = require("PIL.ImageDraw", "rl").Draw(self._image, "RGBA")
        self._font: Any = require("PIL.ImageFont", "rl").load_default(12 * _SCALE)
        low, high = y
        gap = (high - low) * 0.05 or max(1.0, abs(high) * 0.05)
        self._x, self._y = x, (low - gap, high + gap)
        self._axes(title, y_label)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        left, top, right, bottom = _MARGIN
        width, height = _SIZE[0] - left - right, _SIZE[1] - top - bottom
        across = (x - self._x[0]) / (self._x[1] - self._x[0])
        up = (y - self._y[0]) / (self._y[1] - self._y[0])
        return (left + across * width) * _SCALE, (top + (1 - up) * height) * _SCALE

    def _axes(self, title: str, y_label: str) -> None:
        for tick in _ticks(*self._y):
            self._line([(self._x[0], tick), (self._x[1], tick)], _GREY, 1)
            self._text(self._at(self._x[0], tick), _short(tick), "rm", dx=-6)
        for tick in _ticks(*self._x):
            self._text(self._at(tick, self._y[0]), _short(tick), "mt", dy=6)
        self._line([(self._x[0], self._y[1]), (self._x[0], self._y[0]), (self._x[1], self._y[0])], _BLACK, 1)
        self._text((_SIZE[0] / 2 * _SCALE, (_SIZE[1] - 8) * _SCALE), "steps", "mb")
        self._text((8 * _SCALE, 8 * _SCALE), y_label, "lt")
        self._text((_SIZE[0] / 2 * _SCALE, 4 * _SCALE), title, "mt")

    def curve(self, runs: list[tuple[NDArray[np.float64], NDArray[np.float64]]], colour: tuple[int, int, int]) -> None:
        if len(runs) == 1:
            self._line(list(zip(*runs[0], strict=True)), colour, 2)
            return
        x = np.linspace(max(run[0][0] for run in runs), max(run[0][-1] for run in runs), _POINTS)
        y = np.stack([np.interp(x, *run) for run in runs])  # a run that has ended stays where it was
        band = [*zip(x, y.max(axis=0), strict=True), *zip(x[::-1], y.min(axis=0)[::-1], strict=True)]
        self._draw.polygon([self._at(*point) for point in band], fill=(*colour, 50))
        self._line(list(zip(x, y.mean(axis=0), strict=True)), colour, 2)

    def legend(self, label: str, number: int, colour: tuple[int, int, int]) -> None:
        x, y = (_SIZE[0] - _MARGIN[2] - 8) * _SCALE, (_SIZE[1] - _MARGIN[3] - 16 - 18 * number) * _SCALE
        self._text((x, y), label, "rm", colour=colour)

    def _line(self, points: Sequence[tuple[float, float]], colour: tuple[int, int, int], width: int) -> None:
        self._draw.line([self._at(*point) for point in points], fill=colour, width=width * _SCALE, joint="curve")

    def _text(
        self, at: tuple[float, float], text: str, anchor: str, dx: float = 0, dy: float = 0, colour: Any = _BLACK
    ) -> None:
        place = (at[0] + dx * _SCALE, at[1] + dy * _SCALE)
        self._draw.text(place, text, fill=colour, font=self._font, anchor=anchor)

    def png(self) -> bytes:
        content = io.BytesIO()
        self._image.resize(_SIZE, self._shrunk).save(content, "PNG", optimize=True)
        return content.getvalue()


def _ticks(low: float, high: float) -> list[float]:
    """Some five round numbers in between."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step)
    return [step * k for k in range(first, math.floor(high / step) + 1)]


def _short(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:.4g}"
