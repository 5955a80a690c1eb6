"""The whole `vad` pipeline on the real model, against the reference package's answers and against known silences."""

import asyncio
import json

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import Unavailable
from headrace.serve.backends.onnx import OnnxBackend
from headrace.serve.config import load_config
from headrace.serve.model import Model
from headrace.serve.pipeline import Pipeline
from headrace.serve.postprocess.segments import Segmenter
from headrace.serve.postprocess.vad import VadStream
from headrace.serve.protocol import Payload
from headrace.store.pull import pull_recipe
from headrace.store.versions import ModelStore
from headrace.testing.recordings import assemble, clips, speak

pytestmark = pytest.mark.models

FRAME_S = 512 / 16_000
NAMES = ["clean", "noise_20db", "noise_5db", "close", "silence"]


@pytest.fixture(scope="module")
def pulled(checkout):
    """A repository with the recipe in it, kept between runs; only a missing network is a reason to skip."""
    root = checkout / ".cache" / "models"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(checkout / ".cache" / "headrace"))
        try:
            pull_recipe(ModelStore(root), "vad", force_config=True)
        except Unavailable as error:
            pytest.skip(f"the model cannot be pulled: {error}")
    return root


@pytest.fixture
async def model(pulled):
    config = load_config(pulled / "vad-model" / "headrace.toml")
    file = pulled / "vad-model" / "current" / config.file
    model = await Model.load("vad-model", "1", OnnxBackend(file, "vad-model", config.runtime.threads), config)
    yield model
    await model.close()


@pytest.fixture
async def pipeline(pulled, model):
    directory = pulled / "vad"
    pipeline = Pipeline.from_config(
        "vad", load_config(directory / "headrace.toml"), {"vad-model": model}.get, directory
    )
    yield pipeline
    await pipeline.close()


@pytest.fixture(scope="module")
def data(checkout):
    return checkout / "tests" / "golden" / "data"


@pytest.fixture(scope="module")
def spoken(data):
    """Utterances spoken now where espeak-ng is installed, else the stored ones."""
    try:
        return [
            speak("The gate is open and the water runs down to the wheel."),
            speak("Sieben Boote liegen heute am Ufer.", voice="de", words_per_minute=150),
            speak("One more sentence, a little faster than the others.", voice="en+f3", words_per_minute=190),
        ]
    except Unavailable:
        return clips(data)


def golden(data, name):
    spec = next(spec for spec in json.loads((data / "vad.json").read_text())["recordings"] if spec["name"] == name)
    stored = clips(data)
    return spec, assemble(
        [stored[i] for i in spec["clips"]], spec["pauses_s"], snr_db=spec["snr_db"], seed=spec["seed"]
    )


@pytest.mark.parametrize("name", NAMES)
async def test_answers_equal_the_references(pipeline, data, name):
    spec, recording = golden(data, name)
    answer = await pipeline.run(Payload(data=recording.encode("WAV", "FLOAT")), Context(timeout_s=60))
    np.testing.assert_allclose(answer.tensors["probabilities"], spec["probabilities"], atol=1e-4)
    found = [[s["start_s"], s["end_s"]] for s in answer.result["segments"]]
    assert len(found) == len(spec["segments"])
    for span, expected in zip(found, spec["segments"], strict=True):
        np.testing.assert_allclose(span, np.divide(expected, 16_000), atol=FRAME_S)
    assert answer.result["sample_rate"] == 16_000
    assert answer.result["duration_s"] == pytest.approx(recording.duration_s, abs=1e-4)
    assert "warnings" not in answer.result


def test_every_golden_recording_is_tested(data):
    assert [spec["name"] for spec in json.loads((data / "vad.json").read_text())["recordings"]] == NAMES


@pytest.mark.parametrize("snr_db", [None, 30.0, 15.0])
@pytest.mark.parametrize(
    ("format", "subtype", "rate", "channels"),
    [
        ("WAV", "PCM_16", 44_100, 2),
        ("FLAC", "PCM_24", 48_000, 1),
        ("OGG", "VORBIS", 22_050, 1),
        ("MP3", None, 16_000, 1),
    ],
)
async def test_speech_is_found_where_it_is_and_nowhere_else(pipeline, spoken, snr_db, format, subtype, rate, channels):
    import soxr

    at_rate = [soxr.resample(utterance, 16_000, rate).astype(np.float32) for utterance in spoken]
    recording = assemble(at_rate, [1.5, 1.2, 2.0, 1.5], sample_rate=rate, snr_db=snr_db, seed=4)
    data = recording.encode(format, subtype, channels)
    result = (await pipeline.run(Payload(data=data), Context(timeout_s=60))).result
    found = [(s["start_s"], s["end_s"]) for s in result["segments"]]
    assert result["sample_rate"] == rate
    slack_s = 0.3
    for start_s, end_s in found:
        assert any(start_s > a - slack_s and end_s < b + slack_s for a, b in recording.speech_s), (start_s, end_s)
    for a, b in recording.speech_s:
        heard_s = sum(min(b, end_s) - max(a, start_s) for start_s, end_s in found if start_s < b and end_s > a)
        assert heard_s > 0.8 * (b - a), (a, b, found)
    assert all(0.5 < s["confidence"] <= 1.0 for s in result["segments"])


@pytest.mark.parametrize("size", [160, 512, 1_000, 8_192, 100_000])
async def test_a_stream_finds_exactly_what_the_whole_file_has(pipeline, model, data, size):
    _, recording = golden(data, "noise_20db")
    whole = await pipeline.run(Payload(data=recording.encode("WAV", "FLOAT")), Context())
    stream, ctx, heard = VadStream(model), Context(), []
    for at in range(0, len(recording.samples), size):
        heard += await stream.feed(recording.samples[at : at + size], ctx)
    heard += await stream.finish(ctx)
    assert [
        {"start_s": round(s.start / 16_000, 4), "end_s": round(s.end / 16_000, 4), "confidence": round(s.confidence, 4)}
        for s in heard
    ] == whole.result["segments"]
    segmenter = Segmenter()
    at_once = segmenter.feed(whole.tensors["probabilities"].tolist()) + segmenter.finish(len(recording.samples))
    assert heard == at_once


async def test_recordings_at_once_do_not_mix(pipeline, data):
    recordings = [golden(data, name)[1].encode() for name in NAMES] * 3
    alone = [(await pipeline.run(Payload(data=wav), Context())).result for wav in recordings]
    together = await asyncio.gather(*(pipeline.run(Payload(data=wav), Context()) for wav in recordings))
    assert [payload.result for payload in together] == alone
