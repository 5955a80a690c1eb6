"""The segment state machine: its rules one by one, the reference's answers, and that cuts between feeds never show."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.serve.postprocess.segments import Segment, Segmenter, SegmentOptions

FRAME = 512


def segments(probabilities, samples=None, cuts=(), **options):
    segmenter = Segmenter(SegmentOptions(**options))
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(probabilities)], strict=True):
        found += segmenter.feed(probabilities[start:stop])
    return found + segmenter.finish(len(probabilities) * FRAME if samples is None else samples)


def spans(probabilities, samples=None, **options):
    return [(s.start, s.end) for s in segments(probabilities, samples, **options)]


NO_PAD = {"pad_ms": 0.0}


def test_speech_runs_from_the_first_loud_frame_to_the_pause():
    assert spans([0.1] * 5 + [0.9] * 20 + [0.1] * 10, **NO_PAD) == [(5 * FRAME, 25 * FRAME)]


def test_padding_is_added_within_the_recording():
    assert spans([0.1] * 5 + [0.9] * 20 + [0.1] * 10) == [(5 * FRAME - 480, 25 * FRAME + 480)]
    assert spans([0.9] * 20) == [(0, 20 * FRAME)]


def test_hysteresis_keeps_speech_alive_between_the_thresholds():
    assert spans([0.9] * 10 + [0.4] * 20 + [0.9] * 5 + [0.1] * 9, **NO_PAD) == [(0, 35 * FRAME)]
    assert spans([0.4] * 40) == []


def test_short_pauses_are_bridged_and_long_ones_are_not():
    assert spans([0.9] * 10 + [0.1] * 3 + [0.9] * 10 + [0.1] * 9, **NO_PAD) == [(0, 23 * FRAME)]
    assert len(spans([0.9] * 10 + [0.1] * 8 + [0.9] * 10 + [0.1] * 9)) == 2


def test_short_speech_is_dropped():
    assert spans([0.1] * 5 + [0.9] * 7 + [0.1] * 9) == []
    assert len(spans([0.1] * 5 + [0.9] * 7 + [0.1] * 9, min_speech_ms=100.0)) == 1


def test_speech_that_the_recording_cuts_off_ends_with_it():
    assert spans([0.1] * 5 + [0.9] * 20, samples=25 * FRAME - 100, **NO_PAD) == [(5 * FRAME, 25 * FRAME - 100)]


def test_close_neighbours_share_the_pause():
    first, second = spans([0.9] * 10 + [0.1] * 5 + [0.9] * 10 + [0.1] * 20, pad_ms=200.0)
    assert first[1] == second[0] == 10 * FRAME + 5 * FRAME // 2


def test_long_speech_is_cut_at_its_longest_pause():
    speech = [0.9] * 20 + [0.1] * 5 + [0.9] * 10 + [0.1] * 4 + [0.9] * 40
    found = spans(speech, min_silence_ms=500.0, max_speech_s=2.0, **NO_PAD)
    assert found[0] == (0, 20 * FRAME)
    assert found[1][0] == 25 * FRAME


def test_long_speech_without_pauses_is_cut_at_the_limit():
    for start, end in spans([0.9] * 300, max_speech_s=1.0):
        assert end - start <= 16_000


def test_confidence_is_the_mean_over_the_frames_of_the_segment():
    (segment,) = segments([0.1] * 5 + [0.6] * 10 + [0.8] * 10 + [0.1] * 10)
    assert segment.confidence == pytest.approx(0.7)


def test_a_segment_is_released_as_soon_as_it_is_final():
    segmenter = Segmenter()
    assert segmenter.feed([0.9] * 20) == []
    assert segmenter.feed([0.1] * 4) == []
    assert segmenter.feed([0.1]) == [Segment(0, 20 * FRAME + 480, pytest.approx(0.9))]
    assert segmenter.finish(25 * FRAME) == []


def test_no_frames_make_no_segments():
    assert segments([]) == []


def test_answers_equal_the_references(checkout):
    cases = json.loads((checkout / "tests/golden/data/segments.json").read_text())
    assert len(cases) == 40
    for case in cases:
        found = segments([p / 100 for p in case["percent"]], case["samples"], **case["options"])
        assert [[s.start, s.end] for s in found] == case["segments"], case


probabilities = st.lists(st.one_of(st.sampled_from([0.0, 0.34, 0.35, 0.4, 0.5, 0.9]), st.floats(0, 1)), max_size=120)
options = st.fixed_dictionaries(
    {
        "min_speech_ms": st.sampled_from([0.0, 64.0, 250.0]),
        "min_silence_ms": st.sampled_from([0.0, 32.0, 100.0]),
        "pad_ms": st.sampled_from([0.0, 30.0, 200.0]),
        "max_speech_s": st.sampled_from([0.6, 1.0, math.inf]),
    }
)


@given(probabilities, options, st.lists(st.integers(0, 120), max_size=12), st.integers(1, FRAME))
def test_cuts_between_feeds_never_show(frames, chosen, cuts, last):
    samples = max(0, len(frames) - 1) * FRAME + last if frames else 0
    cuts = sorted(min(cut, len(frames)) for cut in cuts)
    assert segments(frames, samples, cuts, **chosen) == segments(frames, samples, **chosen)


@given(probabilities, options, st.integers(1, FRAME))
def test_segments_are_ordered_apart_and_inside_the_recording(frames, chosen, last):
    samples = max(0, len(frames) - 1) * FRAME + last if frames else 0
    at = 0
    for segment in segments(frames, samples, **chosen):
        assert at <= segment.start < segment.end <= samples
        assert 0.0 <= segment.confidence <= 1.0
        at = segment.end


@pytest.mark.parametrize(
    "bad",
    [
        {"threshold": 0.0},
        {"threshold": 1.1},
        {"negative_threshold": 0.6},
        {"min_speech_ms": -1.0},
        {"pad_ms": math.nan},
        {"min_silence_ms": math.inf},
        {"max_speech_s": 0.1},
        {"max_speech_s": math.nan},
    ],
)
def test_bad_options_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SegmentOptions(**bad)
