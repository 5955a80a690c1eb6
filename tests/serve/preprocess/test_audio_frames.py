"""Framing: rows overlap by the context, the last is filled with silence, nothing is copied apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.preprocess.frames import Frame, frame_view
from headrace.serve.protocol import Payload


def frame(samples, size, context):
    return Frame(size, context).process(Payload(tensors={"audio": samples}), Context())


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 50))
def test_rows_are_the_context_and_then_the_samples(count, size, context):
    samples = np.arange(1, count + 1, dtype=np.float32)
    payload = frame(samples, size, context)
    frames = payload.tensors["frames"]
    assert frames.shape == (-(-count // size), context + size)
    assert payload.metadata["samples"] == count
    flat = frames[:, context:].reshape(-1)
    np.testing.assert_array_equal(flat[:count], samples)
    assert not flat[count:].any()
    history = np.concatenate((np.zeros(context, np.float32), flat))
    for row, values in enumerate(frames):
        np.testing.assert_array_equal(values[:context], history[row * size : row * size + context])


def test_frames_are_a_read_only_view():
    frames = frame_view(np.zeros(64 + 512 * 100, np.float32), 512, 64)
    assert frames.shape == (100, 576)
    assert not frames.flags.owndata
    assert not frames.flags.writeable


def test_too_few_samples_make_no_frame():
    assert frame_view(np.zeros(10, np.float32), 512, 64).shape == (0, 576)


@pytest.mark.parametrize("audio", [np.zeros(0, np.float32), np.zeros((2, 5), np.float32), None, []])
def test_what_is_no_recording_is_refused(audio):
    with pytest.raises(InvalidInput, match="at least one"):
        frame(audio, 512, 64)


def test_bad_options_are_refused():
    with pytest.raises(ConfigError):
        Frame(0)
    with pytest.raises(ConfigError):
        Frame(1, -1)
