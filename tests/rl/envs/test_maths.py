"""Sine and cosine as loops compute them, against the C library's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rl.envs.maths import clip, cos, sin


@given(st.floats(-1e6, 1e6))
def test_within_one_ulp(x):
    assert abs(sin(x) - math.sin(x)) <= math.ulp(math.sin(x))
    assert abs(cos(x) - math.cos(x)) <= math.ulp(math.cos(x))


@pytest.mark.parametrize("quarter", range(-9, 10))
def test_where_quadrants_meet(quarter):
    for x in (quarter * math.pi / 4, np.nextafter(quarter * math.pi / 4, 99), np.nextafter(quarter * math.pi / 4, -99)):
        assert abs(sin(float(x)) - math.sin(x)) <= math.ulp(math.sin(x))
        assert abs(cos(float(x)) - math.cos(x)) <= math.ulp(math.cos(x))


def test_special_values():
    assert (sin(0.0), cos(0.0)) == (0.0, 1.0)
    for x in (1.0000001e6, -1e300, math.inf, math.nan):
        assert math.isnan(sin(x))
        assert math.isnan(cos(x))


def test_clip_is_numpys_for_one_number():
    for x in (-3.0, -1.0, 0.5, 2.0, 9.0):
        assert clip(x, -1.0, 2.0) == np.clip(x, -1.0, 2.0)
