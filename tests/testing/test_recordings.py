"""Recordings are what they say: speech where the spans are, silence elsewhere, noise at the level asked for."""

import io
import shutil

import numpy as np
import pytest
import soundfile

from headrace.errors import InvalidInput, Unavailable
from headrace.testing.recordings import assemble, clips, speak, speech, trimmed


@pytest.fixture(scope="module")
def stored(checkout):
    return clips(checkout / "tests" / "golden" / "data")


def test_spans_hold_the_utterances_and_all_else_is_silence(stored):
    recording = assemble(stored, [0.5, 0.25, 1.0, 0.0])
    assert recording.duration_s == pytest.approx(1.75 + sum(map(len, stored)) / 16_000)
    quiet = recording.samples.copy()
    for (start_s, end_s), utterance in zip(recording.speech_s, stored, strict=True):
        span = slice(round(start_s * 16_000), round(end_s * 16_000))
        np.testing.assert_array_equal(recording.samples[span], utterance)
        quiet[span] = 0
    assert not quiet.any()


@pytest.mark.parametrize("snr_db", [0.0, 10.0, 30.0])
def test_noise_has_the_power_asked_for_and_follows_the_seed(stored, snr_db):
    clean = assemble(stored[:1], [2.0, 2.0])
    noisy = assemble(stored[:1], [2.0, 2.0], snr_db=snr_db, seed=5)
    power = np.mean(stored[0].astype(np.float64) ** 2) / np.mean((noisy.samples[:32_000].astype(np.float64)) ** 2)
    assert 10 * np.log10(power) == pytest.approx(snr_db, abs=0.3)
    assert noisy.speech_s == clean.speech_s
    np.testing.assert_array_equal(noisy.samples, assemble(stored[:1], [2.0, 2.0], snr_db=snr_db, seed=5).samples)


def test_encoding_keeps_rate_channels_and_samples(stored):
    recording = assemble(stored[:1], [0.1, 0.1])
    samples, rate = soundfile.read(io.BytesIO(recording.encode("WAV", "FLOAT", channels=2)), dtype="float32")
    assert rate == 16_000
    assert samples.shape == (len(recording.samples), 2)
    np.testing.assert_array_equal(samples[:, 1], recording.samples)


def test_silence_around_is_cut_off_and_nothing_else():
    tone = np.full(100, 0.5, np.float32)
    np.testing.assert_array_equal(
        trimmed(np.concatenate([np.zeros(50, np.float32), tone, np.zeros(9, np.float32)])), tone
    )
    assert len(trimmed(np.zeros(10, np.float32))) == 0


def test_wrong_counts_and_empty_folders_are_refused(stored, tmp_path):
    with pytest.raises(InvalidInput, match="3 utterances need 4 pauses"):
        assemble(stored, [1.0])
    with pytest.raises(InvalidInput, match="found none"):
        clips(tmp_path)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_espeak_speaks_between_two_seconds_of_silence():
    samples, rate = soundfile.read(io.BytesIO(speech("One two three.")))
    assert rate == 16_000
    assert np.abs(samples[:15_000]).max() == 0
    assert np.abs(samples).max() > 0.1


def test_without_espeak_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="apt-get install espeak-ng"):
        speak("Hello.")
