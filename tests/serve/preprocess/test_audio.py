"""Decoding and resampling: every accepted format, raw PCM, the limits, and that no cut of blocks shows."""

import io

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import Cancelled, ConfigError, DeadlineExceeded, InvalidInput, PayloadTooLarge, UnsupportedMedia
from headrace.serve.preprocess.audio import DecodeAudio, Resample
from headrace.serve.protocol import Payload


def tone(rate, seconds=1.0, hz=440.0):
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def encode(samples, rate, format="WAV", subtype=None):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def decode(data, **options):
    return DecodeAudio(**options).process(Payload(data=data), Context())


def pcm(samples, source_rate, **options):
    payload = Payload(tensors={"audio": samples}, metadata={"sample_rate": source_rate})
    return DecodeAudio(**options).process(payload, Context())


def similarity(one, other):
    """Cosine of two signals, at the best of a few hundred delays: codecs shift what they compress."""
    size = min(len(one), len(other)) - 2000
    one = one[1000 : 1000 + size]
    scores = []
    for delay in range(-600, 601):
        part = other[1000 + delay : 1000 + delay + size]
        if len(part) == size:
            scores.append(float(one @ part / (np.linalg.norm(one) * np.linalg.norm(part) + 1e-9)))
    return max(scores)


@pytest.mark.parametrize(
    ("format", "subtype"),
    [
        ("WAV", "PCM_U8"),
        ("WAV", "PCM_16"),
        ("WAV", "PCM_24"),
        ("WAV", "PCM_32"),
        ("WAV", "FLOAT"),
        ("WAV", "DOUBLE"),
        ("WAV", "ALAW"),
        ("WAV", "ULAW"),
        ("WAV", "IMA_ADPCM"),
        ("WAVEX", "PCM_16"),
        ("RF64", "PCM_16"),
        ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
def test_every_accepted_format_gives_the_signal_back(format, subtype):
    payload = decode(encode(tone(48_000), 48_000, format, subtype), rate=16_000)
    audio = payload.tensors["audio"]
    assert audio.dtype == np.float32
    assert audio.ndim == 1
    assert payload.metadata["warnings"] == []
    assert payload.metadata["sample_rate"] == 16_000
    assert payload.metadata["source_sample_rate"] == 48_000
    assert payload.metadata["duration_s"] == pytest.approx(1.0, abs=0.05)
    assert similarity(tone(16_000), audio) > 0.99


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_every_rate_comes_out_at_16_khz(rate):
    payload = decode(encode(tone(rate), rate), rate=16_000)
    assert len(payload.tensors["audio"]) == pytest.approx(16_000, abs=1)
    assert similarity(tone(16_000), payload.tensors["audio"]) > 0.999


def test_without_a_rate_the_samples_are_the_files_own():
    payload = decode(encode(tone(22_050), 22_050, "WAV", "FLOAT"))
    np.testing.assert_array_equal(payload.tensors["audio"], tone(22_050))
    assert payload.metadata["sample_rate"] == 22_050


def test_channels_are_averaged():
    left, right = tone(16_000), np.zeros(16_000, np.float32)
    payload = decode(encode(np.stack([left, right], 1), 16_000, "WAV", "FLOAT"))
    np.testing.assert_allclose(payload.tensors["audio"], left / 2, atol=1e-7)


def test_block_by_block_resampling_equals_resampling_at_once():
    samples = np.random.default_rng(3).normal(0, 0.1, 44_100 * 2).astype(np.float32)
    streamed = pcm(samples, 44_100, rate=16_000).tensors["audio"]
    np.testing.assert_allclose(streamed, soxr.resample(samples, 44_100, 16_000), atol=1e-6)


def test_resample_stage_changes_rate_and_says_so():
    payload = Resample(8_000).process(
        Payload(tensors={"audio": tone(16_000)}, metadata={"sample_rate": 16_000}), Context()
    )
    assert payload.metadata["sample_rate"] == 8_000
    assert similarity(tone(8_000), payload.tensors["audio"]) > 0.999


# -- raw PCM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("batched", [False, True])
def test_raw_pcm_is_accepted(dtype, batched):
    samples = tone(16_000)
    given_samples = (samples * 32768).astype(np.int16) if dtype == np.int16 else samples.astype(dtype)
    payload = pcm(given_samples[None] if batched else given_samples, 16_000)
    np.testing.assert_allclose(payload.tensors["audio"], samples, atol=1e-4)


@pytest.mark.parametrize(
    ("samples", "rate", "says"),
    [
        (tone(16_000), None, "sample_rate"),
        (tone(16_000), "16000", "'16000'"),
        (tone(16_000), 16_000.5, "whole number"),
        (tone(16_000), True, "True"),
        (tone(16_000), 0, "got 0"),
        (tone(16_000), 4_000, "4000 Hz came"),
        (tone(16_000).reshape(2, -1), 16_000, r"\[2, 8000\]"),
        (np.zeros(10, np.int64), 16_000, "int64"),
        (np.zeros(0, np.float32), 16_000, "no samples"),
        ([tone(16_000)], 16_000, "list"),
    ],
)
def test_bad_raw_pcm_is_refused_by_name(samples, rate, says):
    with pytest.raises(InvalidInput, match=says):
        pcm(samples, rate)


def test_the_callers_samples_are_left_alone():
    samples = np.full(100, 2.0, np.float32)
    pcm(samples, 16_000)
    assert (samples == 2.0).all()


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused_with_their_place(value):
    samples = tone(16_000)
    samples[8_000] = value
    for refuse in (lambda: decode(encode(samples, 16_000, "WAV", "FLOAT")), lambda: pcm(samples, 16_000)):
        with pytest.raises(InvalidInput, match=r"sample 8000 \(0\.500 s\) is not a finite number"):
            refuse()


def test_floats_beyond_full_scale_are_clipped_and_said():
    payload = decode(encode(tone(16_000) * 4, 16_000, "WAV", "FLOAT"))
    assert np.abs(payload.tensors["audio"]).max() == 1.0
    assert "clipped" in payload.metadata["warnings"][0]


def test_warnings_of_a_client_do_not_pass_for_ours():
    payload = Payload(data=encode(tone(16_000), 16_000), metadata={"warnings": "mine"})
    assert DecodeAudio().process(payload, Context()).metadata["warnings"] == []


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_name_what_came_and_what_is_accepted():
    long = encode(tone(16_000, 2.0), 16_000)
    with pytest.raises(PayloadTooLarge, match=r"2\.0 s came; accepted: at most 1 s"):
        decode(long, max_duration_s=1.0)
    with pytest.raises(InvalidInput, match="3 channels came; accepted: at most 2"):
        decode(encode(np.zeros((100, 3), np.float32), 16_000), max_channels=2)
    with pytest.raises(InvalidInput, match="48000 Hz came; accepted: 8000 to 44100 Hz"):
        decode(encode(tone(48_000), 48_000), max_sample_rate=44_100)
    with pytest.raises(PayloadTooLarge):
        pcm(tone(16_000, 2.0), 16_000, max_duration_s=1.0)


def test_a_length_that_the_header_hides_is_still_limited():
    data = bytearray(encode(tone(16_000, 3.0), 16_000, "FLAC"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)  # total samples: unknown
    assert len(decode(bytes(data)).tensors["audio"]) == 48_000
    with pytest.raises(PayloadTooLarge):
        decode(bytes(data), max_duration_s=1.0)


@pytest.mark.parametrize("options", [{"rate": 0}, {"max_duration_s": 0}, {"max_channels": 0}, {"max_sample_rate": 100}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError):
        DecodeAudio(**options)


def test_a_context_that_ended_stops_the_work():
    data = encode(tone(16_000), 16_000)
    with pytest.raises(DeadlineExceeded):
        DecodeAudio().process(Payload(data=data), Context(timeout_s=0))
    ctx = Context()
    ctx.cancel()
    for stage, payload in (
        (DecodeAudio(), Payload(data=data)),
        (Resample(8_000), Payload(tensors={"audio": tone(16_000)}, metadata={"sample_rate": 16_000})),
    ):
        with pytest.raises(Cancelled):
            stage.process(payload, ctx)


# -- bytes that are no recording ---------------------------------------------------------------------------------------


def test_no_bytes_are_refused():
    with pytest.raises(InvalidInput):
        decode(b"")


@pytest.mark.parametrize(
    "data",
    [
        b"hello world" * 50,
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"RIFF\x10\0\0\0AVI LIST",
        b"\xff\xf1\x50\x80" + bytes(100),  # AAC
        b".snd" + bytes(100),
        b"\xff",
    ],
)
def test_other_media_are_refused_as_such(data):
    with pytest.raises(UnsupportedMedia, match="accepted: WAV, FLAC"):
        decode(data)


@pytest.mark.parametrize("format", ["WAV", "RF64", "FLAC", "OGG", "MP3"])
def test_a_file_cut_anywhere_is_played_as_far_as_it_goes_or_refused(format):
    """Never another error than ours, and never samples that nobody recorded."""
    noise = np.random.default_rng(1).normal(0, 0.1, 32_000).astype(np.float32)
    data = encode(noise, 16_000, format)
    for size in [1, 3, 4, 11, 12, 20, 40, 44, 45, 60, 100, len(data) // 3, len(data) // 2, len(data) - 1]:
        try:
            payload = decode(data[:size])
        except InvalidInput:
            continue
        assert 0 < len(payload.tensors["audio"]) <= 32_000 + 2304
        assert payload.metadata["warnings"] or format in ("OGG", "RF64", "MP3")


def test_a_flac_that_breaks_off_keeps_what_was_decoded():
    noise = np.random.default_rng(1).normal(0, 0.1, 64_000).astype(np.float32)
    data = encode(noise, 16_000, "FLAC")
    payload = decode(data[: len(data) // 2])
    kept = payload.tensors["audio"]
    assert 16_000 < len(kept) < 40_000
    np.testing.assert_allclose(kept, noise[: len(kept)], atol=1e-4)
    assert "breaks off" in payload.metadata["warnings"][0]


@settings(deadline=None, max_examples=150)
@given(
    format=st.sampled_from(["WAV", "FLAC", "OGG"]),
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_damaged_bytes_raise_only_our_errors(format, edits):
    data = bytearray(encode(tone(16_000, 0.2), 16_000, format))
    for at, value in edits:
        data[at % min(len(data), 200)] = value
    try:
        payload = decode(bytes(data), rate=16_000, max_duration_s=30.0)
    except InvalidInput:
        return
    assert np.isfinite(payload.tensors["audio"]).all()
    assert 0 < len(payload.tensors["audio"]) <= 30 * 16_000 + 1
