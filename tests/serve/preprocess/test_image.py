"""Operators on decoded pictures: values, shapes, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.preprocess.image import CentreCrop, Layout, Normalise, Resize, resize_image
from headrace.serve.protocol import Payload


def through(stage, image):
    return stage.process(Payload(tensors={"image": image}), Context()).tensors["image"]


def checkerboard(size):
    return (np.indices((size, size)).sum(axis=0) % 2 * 255).astype(np.uint8)[:, :, None].repeat(3, axis=2)


@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(1, 80), st.integers(1, 80),
    st.sampled_from(["bilinear", "bicubic", "area"]), st.booleans(), st.sampled_from([1, 3]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_resize_keeps_a_flat_picture_flat(have_w, have_h, width, height, filter, antialias, channels):
    image = np.full((have_h, have_w, channels), 77, np.uint8)
    resized = resize_image(image, width, height, filter, antialias=antialias)
    assert resized.shape == (height, width, channels)
    assert resized.dtype == np.uint8
    assert np.unique(resized).tolist() == [77]


def test_antialias_averages_where_plain_sampling_picks():
    board = checkerboard(64)
    assert np.ptp(resize_image(board, 16, 16).astype(int)) <= 1
    stripes = np.zeros((8, 60, 3), np.uint8)
    stripes[:, ::6] = 255  # one axis shrinks, the other grows
    assert resize_image(stripes, 10, 16).min() > 20
    assert resize_image(stripes, 10, 16, antialias=False).min() == 0


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        ({"width": 30, "height": 20}, (100, 50), (30, 20)),
        ({"width": 30, "height": 30, "keep_aspect": "fit"}, (100, 50), (30, 15)),
        ({"width": 30, "height": 30, "keep_aspect": "cover"}, (100, 50), (60, 30)),
        ({"height": 20, "keep_aspect": "fit"}, (100, 50), (40, 20)),
        ({"width": 100, "height": 50, "multiple_of": 32}, (9, 9), (96, 64)),
        ({"width": 3, "height": 900, "multiple_of": 32}, (9, 9), (32, 896)),
    ],
)
def test_target_sizes(options, size, expected):
    assert Resize(**options).target(*size) == expected
    assert through(Resize(**options), np.zeros((2, size[1], size[0], 3), np.uint8)).shape == (2, *expected[::-1], 3)


def test_normalise_and_layout_match_the_formula():
    image = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3)).astype(np.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    expected = ((image / 255.0 - mean) / std).transpose(0, 3, 1, 2)
    got = through(Layout("nchw"), through(Normalise(mean, std), image))
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_crop_takes_the_middle():
    image = np.arange(6 * 8).reshape(1, 6, 8, 1)
    assert through(CentreCrop(4, 2), image)[0, :, :, 0].tolist() == [[18, 19, 20, 21], [26, 27, 28, 29]]
    with pytest.raises(InvalidInput, match="9x2, the picture is 8x6"):
        through(CentreCrop(9, 2), image)


@pytest.mark.parametrize("stage", [Resize(8, 8), CentreCrop(1, 1), Normalise(), Layout()])
def test_a_missing_ragged_or_empty_tensor_is_refused(stage):
    for tensors in ({}, {"image": [np.zeros((2, 2, 3))]}, {"image": np.zeros((2, 2, 3))},
                    {"image": np.zeros((0, 2, 2, 3))}):  # fmt: skip
        with pytest.raises(InvalidInput, match=r"image\."):
            stage.process(Payload(tensors=tensors), Context())


def test_channels_must_fit_the_statistics():
    with pytest.raises(InvalidInput, match="3 mean/std values for a picture of 1 channels"):
        through(Normalise([0.1, 0.2, 0.3]), np.zeros((1, 2, 2, 1), np.uint8))


@pytest.mark.parametrize(
    "make",
    [
        Resize,
        lambda: Resize(width=10),
        lambda: Resize(width=-1, height=5),
        lambda: Resize(8, 8, keep_aspect="stretch"),
        lambda: Resize(8, 8, filter="lanczos"),
        lambda: Resize(8, 8, multiple_of=0),
        lambda: CentreCrop(0, 1),
        lambda: Normalise(std=0.0),
        lambda: Normalise(mean=float("nan")),
        lambda: Layout("chw"),
    ],
)
def test_wrong_options_are_told_when_the_stage_is_made(make):
    with pytest.raises(ConfigError, match=r"image\."):
        make()
