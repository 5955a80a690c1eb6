"""Sine and cosine without a branch or a call, so that a loop over environments becomes vector code.

The compiler puts them where an environment says `math.sin` or `np.sin`, and `math.cos` or `np.cos`. Up to |x| = 1e6
they are within 1 ulp of the C library's and give the same bits on every machine, which the C library's do not; beyond
that they are NaN, so that an angle gone astray is seen.

Reduction by multiples of pi/2 split in three parts (Cody and Waite 1980); minimax polynomials on [-pi/4, pi/4] as in
W. Kahan's and K.-C. Ng's fdlibm.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["clip", "cos", "sin"]

_TWO_OVER_PI = 0.6366197723675814
# pi/2 in parts of 33 bits: their products with a whole number below 2**20 are exact
_PIO2_1, _PIO2_2, _PIO2_3 = 1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21
_FARTHEST = 1e6  # radians
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding and subtracting it rounds to a whole number


def _sine(x: Any, tail: Any) -> Any:
    """sin(x + tail) for |x| <= pi/4."""
    z = x * x
    v = z * x
    r = 8.33333333332248946124e-03 + z * (
        -1.98412698298579493134e-04
        + z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))
    )
    return x - ((z * (0.5 * tail - v * r) - tail) - v * -1.66666666666666324348e-01)


def _cosine(x: Any, tail: Any) -> Any:
    """cos(x + tail) for |x| <= pi/4."""
    z = x * x
    r = z * (
        4.16666666666666019037e-02
        + z
        * (
            -1.38888888888741095749e-03
            + z
            * (
                2.48015872894767294178e-05
                + z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))
            )
        )
    )
    half = 0.5 * z
    w = 1.0 - half
    return w + (((1.0 - w) - half) + (z * r - x * tail))


def _reduce(x: Any) -> Any:
    """(quadrant, y, tail) with x = quadrant * pi/2 + y + tail, |y| <= pi/4; the quadrant a float."""
    n = (x * _TWO_OVER_PI + _ROUND) - _ROUND
    a = x - n * _PIO2_1
    w = n * _PIO2_2
    b = a - w
    lost = (a - b) - w
    t = n * _PIO2_3 - lost
    y = b - t
    return n, y, (b - y) - t


def sin(x: float) -> Any:
    """Sine of x radians."""
    n, y, tail = _reduce(x)
    quarter = n * 0.25
    quadrant = n - 4.0 * ((quarter - 0.375 + _ROUND) - _ROUND)  # 0 … 3
    s, c = _sine(y, tail), _cosine(y, tail)
    magnitude = c if quadrant == 1.0 or quadrant == 3.0 else s
    magnitude = magnitude if abs(x) <= _FARTHEST else math.nan
    return -magnitude if quadrant >= 2.0 else magnitude


def cos(x: float) -> Any:
    """Cosine of x radians."""
    n, y, tail = _reduce(x)
    quarter = n * 0.25
    quadrant = n - 4.0 * ((quarter - 0.375 + _ROUND) - _ROUND)
    s, c = _sine(y, tail), _cosine(y, tail)
    magnitude = s if quadrant == 1.0 or quadrant == 3.0 else c
    magnitude = magnitude if abs(x) <= _FARTHEST else math.nan
    return -magnitude if quadrant == 1.0 or quadrant == 2.0 else magnitude


def clip(x: Any, low: Any, high: Any) -> Any:
    """x within [low, high]: what `np.clip` is for one number."""
    return min(max(x, low), high)
