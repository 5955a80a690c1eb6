"""Text boxes from maps whose text is known, and reading order of pages that lie any way up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.postprocess.boxes import BoxOptions, FindBoxes, find_boxes, reading_order
from headrace.serve.protocol import Payload


def bars(height, width, *rects, value=0.9):
    """A map with text probability `value` in each (left, top, right, bottom)."""
    found = np.zeros((height, width), np.float32)
    for left, top, right, bottom in rects:
        found[top:bottom, left:right] = value
    return found


def box(left, top, right, bottom):
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def turned(boxes, degrees, about=(200, 200)):
    angle = np.deg2rad(degrees)
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return ((boxes - about) @ matrix.T + about).astype(np.float32)


def test_a_bar_grows_by_area_times_ratio_over_perimeter():
    boxes, scores, dropped = find_boxes(bars(100, 200, (40, 40, 141, 51)), BoxOptions(grow=1.5))
    assert (len(boxes), dropped) == (1, 0)
    width, height = 101.0, 11.0  # the 2x2 dilation adds a pixel, the outline runs through pixel centres
    grown = width * height * 1.5 / (2 * (width + height))
    expected = box(39 - grown, 39 - grown, 140 + grown, 50 + grown)
    np.testing.assert_allclose(boxes[0], expected, atol=1.0)
    assert 0.7 < scores[0] <= 0.9


def test_weak_small_and_empty_regions_are_no_boxes():
    assert len(find_boxes(np.zeros((64, 64), np.float32))[0]) == 0
    assert len(find_boxes(np.ones((1, 1), np.float32))[0]) == 0
    assert len(find_boxes(bars(64, 64, (10, 10, 50, 20), value=0.4))[0]) == 0
    assert len(find_boxes(bars(64, 64, (10, 10, 50, 11)))[0]) == 0


def test_text_in_the_hole_of_a_frame_is_found_and_the_hole_is_not():
    found = bars(200, 200, (10, 10, 190, 190))
    found[20:180, 20:180] = 0
    found[90:100, 60:140] = 0.9
    boxes, _, _ = find_boxes(found, BoxOptions(min_score=0.0))
    assert len(boxes) == 2
    assert sorted(round(float(np.ptp(b[:, 0]))) > 150 for b in boxes) == [False, True]


def test_many_boxes_are_capped_at_the_best_and_counted():
    rects = [(x, y, x + 12, y + 6) for y in range(0, 490, 14) for x in range(0, 480, 20)]
    found = bars(500, 500, *rects, value=0.6)
    found[rects[7][1] : rects[7][3], rects[7][0] : rects[7][2]] = 1.0
    boxes, scores, dropped = find_boxes(found, BoxOptions(max_boxes=50, min_score=0.3))
    assert (len(boxes), dropped) == (50, len(rects) - 50)
    assert scores.max() > 0.75


@given(st.floats(-44, 44), st.floats(60, 150), st.floats(8, 20))
@settings(max_examples=40, deadline=None)
def test_a_slanted_bar_reads_along_its_long_side(degrees, width, height):
    import cv2

    found = np.zeros((400, 400), np.float32)
    corners = turned(box(200 - width / 2, 200 - height / 2, 200 + width / 2, 200 + height / 2), degrees)
    cv2.fillPoly(found, [np.rint(corners).astype(np.int32)], 1.0)
    boxes, _, _ = find_boxes(found)
    assert len(boxes) == 1
    along, across = boxes[0][1] - boxes[0][0], boxes[0][3] - boxes[0][0]
    slope = np.rad2deg(np.arctan2(along[1], along[0]))
    assert abs(slope - degrees) < 8
    assert along[0] * across[1] - along[1] * across[0] > 0  # clockwise, y down
    assert np.hypot(*along) > np.hypot(*across)


def test_a_tall_bar_reads_downwards():
    boxes, _, _ = find_boxes(bars(200, 100, (40, 20, 52, 180)))
    along = boxes[0][1] - boxes[0][0]
    assert along[1] > 100
    assert abs(along[0]) < 1


PAGE = np.stack([box(x, y + (x % 7), x + 80, y + 20 + (x % 7)) for y in (10, 50, 90, 130) for x in (10, 110, 215)])


@pytest.mark.parametrize("degrees", [0, 4, -12, 90, 180, 270, 176])
@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_reading_order_survives_turning_the_page(degrees, seed):
    shuffled = np.random.default_rng(seed).permutation(len(PAGE))
    order = reading_order(turned(PAGE, degrees)[shuffled])
    assert shuffled[order].tolist() == list(range(len(PAGE)))


def test_reading_order_of_nothing_and_of_points():
    assert reading_order(np.zeros((0, 4, 2), np.float32)).tolist() == []
    assert sorted(reading_order(np.zeros((3, 4, 2), np.float32)).tolist()) == [0, 1, 2]


def test_stage_scales_to_the_picture_and_stays_inside_it():
    payload = Payload(tensors={"map": bars(50, 100, (0, 10, 100, 22))[None, None]})
    payload.metadata.update({"image.width": 1000, "image.height": 250})
    payload = FindBoxes().process(payload, Context())
    boxes = payload.metadata["ocr.boxes"]
    assert boxes.dtype == np.float32
    assert boxes[..., 0].max() == 1000
    assert boxes.min() >= 0
    assert boxes[..., 1].max() <= 250
    assert "map" not in payload.tensors
    assert payload.metadata["ocr.dropped"] == 0


def test_stage_refuses_other_shapes_and_options():
    for tensors in ({}, {"map": np.zeros((1, 2, 4, 4), np.float32)}, {"map": [np.zeros((4, 4))]}):
        with pytest.raises(InvalidInput, match=r"\(1, 1, H, W\)"):
            FindBoxes().process(Payload(tensors=tensors), Context())
    for options in ({"threshold": 1.5}, {"max_boxes": 0}, {"grow": -1}, {"thresh": 0.3}):
        with pytest.raises(ConfigError, match="boxes"):
            FindBoxes(**options)
