"""Strips, orientation and lines: the stages around the models, with answers given by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.postprocess.ocr import Lines, Orient, join_pieces
from headrace.serve.preprocess.ocr import Page, Strips, page_size
from headrace.serve.preprocess.strips import cut_strip, split_strip, squeeze_strip, to_model_range
from headrace.serve.protocol import Payload
from headrace.testing.images import PageSpec, render_page


def box(left, top, right, bottom):
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def ramp(height=40, width=200):
    """Brightness grows along x, so the way a cut strip lies can be seen."""
    row = np.linspace(0, 255, width).astype(np.uint8)
    return np.repeat(np.repeat(row[None, :, None], height, axis=0), 3, axis=2)


def words(height=48, gaps=(300, 620, 900), width=1200, gap=14):
    """A strip of vertical contrast with blank gaps at the given columns."""
    strip = np.full((height, width, 3), 255, np.uint8)
    strip[::2] = 0
    for at in gaps:
        strip[:, at : at + gap] = 255
    return strip


@given(st.integers(1, 6000), st.integers(1, 6000))
def test_page_size_is_bounded_and_a_multiple_of_32(width, height):
    page_w, page_h = page_size(width, height, 736, 2000)
    assert page_w % 32 == page_h % 32 == 0
    assert min(page_w, page_h) >= 32
    assert max(page_w, page_h) <= 2016
    if max(width, height) / min(width, height) < 2:
        assert page_w / page_h == pytest.approx(width / height, rel=0.07)


def test_page_size_leaves_middling_pictures_alone():
    assert page_size(800, 736, 736, 2000) == (800, 736)
    assert page_size(300, 300, 736, 2000) == (736, 736)
    assert page_size(8000, 4000, 736, 2000) == (1984, 992) or page_size(8000, 4000, 736, 2000) == (2016, 992)


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (5000, 3)])
def test_tiny_and_thin_pictures_pass_the_page_stage(size):
    payload = Page(min_side=64, max_side=256).process(
        Payload(tensors={"image": np.zeros((1, size[1], size[0], 3), np.uint8)}), Context()
    )
    assert payload.tensors["page"].dtype == np.float32
    assert payload.tensors["page"].shape[:2] == (1, 3)


def test_model_range():
    rows = to_model_range(np.array([[[0, 255, 127]]], np.uint8), width=3)
    assert rows.shape == (3, 1, 3)
    np.testing.assert_allclose(rows[:, 0, 0], [-1, 1, -1 / 255], atol=1e-6)
    assert not rows[:, :, 1:].any()


@pytest.mark.parametrize("turn", range(4))
def test_a_strip_lies_the_way_its_box_says(turn):
    picture = np.ascontiguousarray(np.rot90(ramp(), turn))
    height, width = picture.shape[:2]
    corners = np.roll(box(0, 0, width, height), turn, axis=0)  # np.rot90 turns against the clock
    strip = cut_strip(picture, corners, 48)
    assert strip.shape == (48, 240, 3)
    assert strip[20, 5, 0] < 30
    assert strip[20, -6, 0] > 220


def test_boxes_at_and_beyond_the_border_give_strips():
    for corners in (box(195, 35, 230, 60), box(-20, -20, 5, 5), box(200, 40, 200, 40), box(3, 3, 3.2, 3.2)):
        strip = cut_strip(ramp(), corners, 48)
        assert strip.shape[0] == 48
        assert strip.shape[1] >= 1


def test_splitting_cuts_at_gaps_and_loses_nothing():
    strip = words()
    pieces = split_strip(strip, 640)
    assert np.array_equal(np.concatenate(pieces, axis=1), strip)
    assert [piece.shape[1] for piece in pieces] == [627, 573]
    assert all(piece.shape[1] <= 400 for piece in split_strip(words(gaps=range(100, 1200, 100)), 400))


@given(st.integers(1, 3000), st.integers(64, 700), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_splitting_anything_keeps_every_column_in_order(width, max_width, seed):
    strip = np.random.default_rng(seed).integers(0, 256, (16, width, 3)).astype(np.uint8)
    pieces = split_strip(strip, max_width)
    assert all(piece.shape[1] > 0 for piece in pieces)
    assert np.array_equal(np.concatenate(pieces, axis=1), strip)


def test_a_strip_without_gaps_stays_whole():
    assert len(split_strip(words(gaps=()), 300)) == 1


def test_squeeze_has_a_floor():
    assert squeeze_strip(ramp(48, 400), 0.5, 96).shape == (48, 200, 3)
    assert squeeze_strip(ramp(48, 100), 0.5, 96).shape == (48, 96, 3)
    assert squeeze_strip(ramp(48, 80), 0.5, 96).shape == (48, 80, 3)


def test_long_strips_are_shown_to_the_classifier_as_windows():
    payload = Payload(tensors={"image": np.zeros((1, 100, 900, 3), np.uint8)})
    payload.metadata["ocr.boxes"] = np.stack([box(0, 0, 800, 40), box(0, 50, 60, 90)])
    payload = Strips().process(payload, Context())
    assert payload.metadata["ocr.windows"] == [2, 1]
    assert payload.tensors["angle_rows"].shape == (3, 3, 48, 192)
    assert [strip.shape for strip in payload.metadata["ocr.strips"]] == [(48, 960, 3), (48, 72, 3)]


def oriented(strips, windows, angles, **options):
    payload = Payload(tensors={"angle": np.asarray(angles, np.float32).reshape(-1, 2)})
    boxes = np.stack([box(0, 0, s.shape[1], 48) for s in strips]) if strips else np.zeros((0, 4, 2), np.float32)
    payload.metadata.update({"ocr.strips": strips, "ocr.windows": windows, "ocr.boxes": boxes})
    return Orient(**options).process(payload, Context())


def test_upside_down_strips_and_their_boxes_are_turned_by_the_mean_of_their_windows():
    payload = oriented([ramp(48, 200), ramp(48, 200)], [2, 1], [[0.9, 0.1], [0.2, 0.8], [0.1, 0.9]], squeeze=1.0)
    upright, turned = payload.tensors["rows"]
    assert upright[0, 0, 0] < -0.9
    assert turned[0, 0, 0] > 0.9
    assert payload.metadata["ocr.boxes"][0][0].tolist() == [0, 0]
    assert payload.metadata["ocr.boxes"][1][0].tolist() == [200, 48]


def test_rows_come_in_few_widths():
    strips = [ramp(48, width) for width in (1, 50, 161, 400)] + [words()]
    payload = oriented(strips, [1] * 5, [[1, 0]] * 5)
    widths = [row.shape[2] for row in payload.tensors["rows"]]
    assert payload.metadata["ocr.pieces"] == [1, 1, 1, 1, 2]
    assert all(width % 32 == 0 and 160 <= width <= 640 for width in widths)


def test_no_boxes_are_no_lines():
    payload = oriented([], [], [])
    assert payload.tensors["rows"] == []
    payload.metadata.update({"ctc.texts": [], "ctc.confidences": [], "image.width": 3, "image.height": 2})
    assert Lines().process(payload, Context()).result == {"width": 3, "height": 2, "lines": []}


def test_a_classifier_that_answers_for_other_strips_is_refused():
    with pytest.raises(InvalidInput, match="2 windows, but 1 rows"):
        oriented([ramp(48, 99)] * 2, [1, 1], [[1, 0]])


def read(texts, confidences, boxes, pieces=None, **options):
    payload = Payload()
    payload.metadata.update({
        "ctc.texts": texts, "ctc.confidences": confidences, "ocr.boxes": np.stack(boxes), "ocr.dropped": 0,
        "ocr.pieces": pieces or [1] * len(texts), "image.width": 100, "image.height": 80,
    })  # fmt: skip
    return Lines(**options).process(payload, Context()).result


def test_lines_come_in_reading_order_without_the_unsure_and_the_empty():
    boxes = [box(0, 40, 50, 50), box(60, 0, 90, 10), box(0, 0, 50, 10), box(0, 60, 50, 70), box(0, 70, 50, 79)]
    result = read(["last", "second", "first", "unsure", "  "], [0.9, 0.8, 0.95, 0.3, 0.9], boxes)
    assert [line["text"] for line in result["lines"]] == ["first", "second", "last"]
    assert result["lines"][0] == {
        "text": "first", "confidence": 0.95, "box": [[0.0, 0.0], [50.0, 0.0], [50.0, 10.0], [0.0, 10.0]]
    }  # fmt: skip
    assert "truncated" not in result


def test_pieces_are_joined_again():
    result = read(["one two", "three", "four"], [0.9, 0.6, 0.8], [box(0, 0, 9, 9), box(0, 20, 9, 29)], pieces=[2, 1])
    assert [line["text"] for line in result["lines"]] == ["one two three", "four"]
    assert result["lines"][0]["confidence"] == pytest.approx((7 * 0.9 + 5 * 0.6) / 12, abs=1e-4)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [(["a", "b"], "a b"), (["a ", " b"], "a b"), (["a", "", "b"], "a b"), (["", "b"], "b"),
     (["你好", "世界"], "你好世界"), (["你好", "ok"], "你好ok"), (["end,", "next"], "end, next")],
)  # fmt: skip
def test_joining(pieces, text):
    assert join_pieces([(piece, 1.0) for piece in pieces])[0] == text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Page(min_side=8),
        lambda: Page(min_side=900, max_side=800),
        lambda: Strips(height=1),
        lambda: Strips(windows=0),
        lambda: Orient(squeeze=0.1),
        lambda: Orient(min_confidence=0.1),
        lambda: Orient(max_width=10),
        lambda: Orient(multiple_of=0),
        lambda: Lines(min_confidence=2),
    ],
)
def test_wrong_options_are_told_when_the_stage_is_made(make):
    with pytest.raises(ConfigError, match=r"ocr\."):
        make()


def test_real_text_is_cut_between_words():
    page = render_page(PageSpec("line", width=1600, height=64, size=34, lines=1), seed=4)
    strip = page.pixels[:48]
    pieces = split_strip(strip, 640)
    assert len(pieces) >= 3
    assert max(piece.shape[1] for piece in pieces) <= 640
    for piece in pieces[:-1]:
        assert np.ptp(piece[:, -1].astype(int), axis=0).max() < 20  # the cut runs through paper
