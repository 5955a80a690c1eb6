"""The voice-activity stages and stream, over a small recurrent model in NumPy with Silero VAD's signature."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import Cancelled, ConfigError, InvalidInput, RejectedResult, Unavailable
from headrace.serve.postprocess.segments import Segmenter, SegmentOptions
from headrace.serve.postprocess.vad import SpeechProbabilities, SpeechSegments, VadStream
from headrace.serve.preprocess.frames import Frame
from headrace.serve.protocol import Payload, TensorSpec


def spec(name, *shape):
    return TensorSpec(name, np.dtype(np.float32), shape)


class Loudness:
    """Probability = a slow average of the loudness of the frames; state in `h` and `c` as an LSTM would have it."""

    inputs = (spec("input", -1, 576), spec("h", 1, 1, 128), spec("c", 1, 1, 128))
    outputs = (spec("speech_probs", -1), spec("hn", 1, 1, 128), spec("cn", 1, 1, 128))

    def __init__(self):
        self.calls = []

    async def infer(self, tensors, ctx):
        await asyncio.sleep(0)
        frames, hidden, cell = tensors["input"], tensors["h"].copy(), tensors["c"].copy()
        self.calls.append(len(frames))
        found = np.empty(len(frames), np.float32)
        for row, frame in enumerate(frames):
            loud = np.float32(np.abs(frame[64:]).max() + 0.1 * np.abs(frame[:64]).max())
            hidden[0, 0, 0] = np.float32(0.5) * hidden[0, 0, 0] + np.float32(0.5) * loud
            cell += 1
            found[row] = min(1.0, hidden[0, 0, 0])
        return {"speech_probs": found, "hn": hidden, "cn": cell}


def bursts(seed, parts=12):
    """Loud and quiet stretches of odd lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12_000, parts)
    return np.concatenate(
        [rng.uniform(-1, 1, n) * (0.9 if i % 2 else 0.02) for i, n in enumerate(lengths)], dtype=np.float32
    )


async def whole(model, samples, **options):
    ctx = Context()
    payload = Frame(512, 64).process(Payload(tensors={"audio": samples}), ctx)
    stage = SpeechProbabilities("vad-model", block_frames=7)
    stage.bind(lambda name: model)
    payload = await stage.process(payload, ctx)
    return SpeechSegments(**options).process(payload, ctx)


async def test_a_recording_becomes_a_json_answer():
    samples = np.concatenate([np.zeros(16_000), np.full(16_000, 0.9), np.zeros(16_000)], dtype=np.float32)
    payload = await whole(Loudness(), samples)
    (segment,) = payload.result["segments"]
    assert payload.result["duration_s"] == 3.0
    assert payload.result["sample_rate"] == 16_000
    assert segment["start_s"] == pytest.approx(1.0, abs=0.07)
    assert segment["end_s"] == pytest.approx(2.0, abs=0.1)
    assert 0.5 < segment["confidence"] <= 1.0
    assert "warnings" not in payload.result


async def test_frames_go_in_blocks_and_state_is_carried():
    model = Loudness()
    payload = await whole(model, bursts(0))
    frames = len(payload.tensors["probabilities"])
    assert model.calls == [7] * (frames // 7) + ([frames % 7] if frames % 7 else [])
    one = SpeechProbabilities("vad-model", block_frames=10_000)
    one.bind(lambda name: Loudness())
    again = await one.process(Frame(512, 64).process(Payload(tensors={"audio": bursts(0)}), Context()), Context())
    np.testing.assert_array_equal(again.tensors["probabilities"], payload.tensors["probabilities"])


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.lists(st.integers(0, 40_000), max_size=10), st.sampled_from([30.0, 300.0]))
def test_a_stream_finds_what_the_whole_file_has(seed, cuts, pad_ms):
    samples = bursts(seed)
    cuts = sorted(min(cut, len(samples)) for cut in cuts)

    async def both():
        payload = await whole(Loudness(), samples, pad_ms=pad_ms)
        segmenter = Segmenter(SegmentOptions(pad_ms=pad_ms))
        at_once = segmenter.feed(payload.tensors["probabilities"].tolist()) + segmenter.finish(len(samples))
        stream, ctx, heard = VadStream(Loudness(), SegmentOptions(pad_ms=pad_ms)), Context(), []
        for start, stop in zip([0, *cuts], [*cuts, len(samples)], strict=True):
            heard += await stream.feed(samples[start:stop], ctx)
        heard += await stream.finish(ctx)
        return at_once, heard, len(payload.result["segments"])

    at_once, heard, told = asyncio.run(both())
    assert heard == at_once
    assert told == len(at_once)


async def test_streams_at_once_do_not_mix():
    model = Loudness()
    recordings = [bursts(seed) for seed in range(6)]

    async def listen(samples):
        stream, ctx, heard = VadStream(model), Context(), []
        for at in range(0, len(samples), 1000):
            heard += await stream.feed(samples[at : at + 1000], ctx)
        return heard + await stream.finish(ctx)

    together = await asyncio.gather(*(listen(samples) for samples in recordings))
    assert together == [await listen(samples) for samples in recordings]


async def test_an_empty_stream_has_no_speech():
    stream = VadStream(Loudness())
    assert await stream.finish(Context()) == []


@pytest.mark.parametrize("chunk", [np.zeros(10), np.zeros((2, 5), np.float32), np.zeros(3, np.int16)])
async def test_a_chunk_of_another_kind_is_refused(chunk):
    with pytest.raises(InvalidInput, match="expected float32"):
        await VadStream(Loudness()).feed(chunk, Context())


async def test_warnings_and_the_source_are_told():
    payload = Payload(
        tensors={"probabilities": np.zeros(10, np.float32)},
        metadata={"warnings": ["cut short"], "source_sample_rate": 44_100, "duration_s": 0.32, "samples": 5_120},
    )
    result = SpeechSegments().process(payload, Context()).result
    assert result == {"duration_s": 0.32, "sample_rate": 44_100, "segments": [], "warnings": ["cut short"]}


async def test_no_segment_outlasts_the_recording():
    payload = Payload(
        tensors={"probabilities": np.ones(20, np.float32)},
        metadata={"duration_s": 20 * 512 / 16_000 - 0.00003, "samples": 20 * 512},
    )
    result = SpeechSegments().process(payload, Context()).result
    assert result["segments"][0]["end_s"] <= result["duration_s"]


@pytest.mark.parametrize("value", [np.nan, 1.5, -0.1])
async def test_probabilities_that_are_none_are_rejected(value):
    class Broken(Loudness):
        async def infer(self, tensors, ctx):
            answer = await super().infer(tensors, ctx)
            answer["speech_probs"][0] = value
            return answer

    with pytest.raises(RejectedResult, match=r"outside 0\.\.1"):
        await whole(Broken(), bursts(0))


async def test_another_model_is_refused_by_its_tensors():
    class PerFrame(Loudness):
        inputs = (spec("input", -1, -1), spec("state", 2, -1, 128))

    with pytest.raises(ConfigError, match="lacks c, h; expected silero_vad_16k_sequence"):
        await whole(PerFrame(), bursts(0))
    with pytest.raises(ConfigError):
        VadStream(PerFrame())


async def test_a_cancelled_request_stops_between_calls():
    class Impatient(Loudness):
        async def infer(self, tensors, ctx):
            if len(self.calls) == 2:
                ctx.cancel()
            return await super().infer(tensors, ctx)

    model, ctx = Impatient(), Context()
    stage = SpeechProbabilities("vad-model", block_frames=1)
    stage.bind(lambda name: model)
    payload = Frame(512, 64).process(Payload(tensors={"audio": bursts(0)}), ctx)
    with pytest.raises(Cancelled):
        await stage.process(payload, ctx)
    assert len(model.calls) == 3


async def test_a_reload_half_way_starts_over_with_the_successor():
    class Closing(Loudness):
        async def infer(self, tensors, ctx):
            if len(self.calls) == 2:
                raise Unavailable("model 'vad-model' is being unloaded")
            return await super().infer(tensors, ctx)

    old, new = Closing(), Loudness()
    stage = SpeechProbabilities("vad-model", block_frames=3)
    stage.bind(lambda name: new if old.calls else old)
    payload = Frame(512, 64).process(Payload(tensors={"audio": bursts(0)}), Context())
    payload = await stage.process(payload, Context())
    np.testing.assert_array_equal(
        payload.tensors["probabilities"], (await whole(Loudness(), bursts(0))).tensors["probabilities"]
    )
    stage.bind(lambda name: old)
    with pytest.raises(Unavailable, match="being unloaded"):
        await stage.process(payload, Context())


async def test_stages_refuse_payloads_that_lack_their_tensor():
    stage = SpeechProbabilities("vad-model")
    with pytest.raises(Unavailable, match="not bound"):
        await stage.process(Payload(), Context())
    stage.bind(lambda name: Loudness())
    with pytest.raises(InvalidInput, match=r"\[frames, 576\]"):
        await stage.process(Payload(tensors={"frames": np.zeros((3, 512), np.float32)}), Context())
    with pytest.raises(InvalidInput, match=r"\[frames\]"):
        SpeechSegments().process(Payload(), Context())


def test_bad_options_are_refused():
    for make in (
        lambda: SpeechProbabilities(""),
        lambda: SpeechProbabilities("m", 0),
        lambda: SpeechSegments(treshold=0.5),
        lambda: SpeechSegments(threshold=2.0),
    ):
        with pytest.raises(ConfigError):
            make()
