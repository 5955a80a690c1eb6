"""Voice activity: frames of a recording through a recurrent model, and its probabilities into a JSON answer.

The model is Silero VAD's sequence variant: `input` [frames, 576], `h` and `c` [1, 1, 128] -> `speech_probs` [frames],
`hn`, `cn`. Its convolutions run over all frames of a call at once and only its LSTM goes frame by frame, inside the
call, so a recording needs one call for every 8 s of audio. What a call leaves behind for the next one is `VadState`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, RejectedResult, Unavailable
from headrace.serve.infer import Inferrer, ModelResolver
from headrace.serve.postprocess.segments import Segment, Segmenter, SegmentOptions
from headrace.serve.preprocess.frames import frame_view
from headrace.serve.protocol import Array, Payload

__all__ = ["SpeechProbabilities", "SpeechSegments", "VadState", "VadStream"]

SAMPLE_RATE = 16_000
FRAME = 512
CONTEXT = 64
BLOCK_FRAMES = 256
"""Frames a call: 8.2 s of audio and some 8 ms of work, after which a cancelled request stops."""


@dataclass(slots=True)
class VadState:
    """All that a recording heard so far leaves behind.

    Attributes:
        hidden, cell: State of the model's LSTM, float32 [1, 1, 128].
        tail: The last `CONTEXT` samples that went through the model, then those too few for a frame.
        samples: Samples taken so far, the ones in `tail` included.
    """

    hidden: Array = field(default_factory=lambda: np.zeros((1, 1, 128), np.float32))
    cell: Array = field(default_factory=lambda: np.zeros((1, 1, 128), np.float32))
    tail: Array = field(default_factory=lambda: np.zeros(CONTEXT, np.float32))
    samples: int = 0


async def _probabilities(model: Inferrer, frames: Array, state: VadState, ctx: Context, block: int) -> Array:
    """Run `frames` [n, 576] through `model` from `state` on; return float32 [n] and move `state` behind them."""
    found = np.empty(len(frames), np.float32)
    for at in range(0, len(frames), block):
        ctx.check()
        taken = frames[at : at + block]
        answer = await model.infer({"input": taken, "h": state.hidden, "c": state.cell}, ctx)
        state.hidden, state.cell = answer["hn"], answer["cn"]
        found[at : at + block] = answer["speech_probs"]
    # Written so that a NaN fails it too.
    if not ((found >= 0.0) & (found <= 1.0)).all():
        raise RejectedResult("vad: the model answered with probabilities outside 0..1")
    return found


def _check_model(name: str, model: Inferrer) -> None:
    have = {spec.name for spec in (*model.inputs, *model.outputs)}
    if missing := {"input", "h", "c", "speech_probs", "hn", "cn"} - have:
        raise ConfigError(
            f"vad: model {name!r} lacks {', '.join(sorted(missing))}; expected silero_vad_16k_sequence.onnx, "
            f"which takes `input`, `h`, `c` and gives `speech_probs`, `hn`, `cn`"
        )


class SpeechProbabilities:
    """Run a recording's `tensors["frames"]` [n, 576] through `model` into `tensors["probabilities"]`, float32 [n].

    Args:
        model: Name in the repository, resolved at each request.
        block_frames: Frames a call.
    """

    def __init__(self, model: str, block_frames: int = BLOCK_FRAMES) -> None:
        if not model or block_frames < 1:
            raise ConfigError("vad.probabilities: `model` must name a model and `block_frames` be 1 or more")
        self.model = model
        self.needs = (model,)
        self.block_frames = block_frames
        self._models: ModelResolver | None = None

    def bind(self, models: ModelResolver) -> None:
        self._models = models

    async def process(self, payload: Payload, ctx: Context, /) -> Payload:
        if self._models is None:
            raise Unavailable(f"vad.probabilities: model {self.model!r} is not bound to a repository")
        frames = payload.tensors.get("frames")
        if not isinstance(frames, np.ndarray) or frames.shape[1:] != (CONTEXT + FRAME,):
            got = list(frames.shape) if isinstance(frames, np.ndarray) else type(frames).__name__
            raise InvalidInput(f"vad.probabilities: `frames` is {got}; expected shape [frames, {CONTEXT + FRAME}]")
        model = self._models(self.model)
        _check_model(self.model, model)
        try:
            found = await _probabilities(model, frames, VadState(), ctx, self.block_frames)
        except Unavailable:
            # Closed by a reload half-way. The state of one version means nothing to the next: start over with that.
            successor = self._models(self.model)
            if successor is model:
                raise
            _check_model(self.model, successor)
            found = await _probabilities(successor, frames, VadState(), ctx, self.block_frames)
        payload.tensors["probabilities"] = found
        return payload


class SpeechSegments:
    """Turn `tensors["probabilities"]` [n] into `payload.result`.

    The result is `{"duration_s", "sample_rate", "segments": [{"start_s", "end_s", "confidence"}]}`, times in seconds
    and `sample_rate` that of the recording as it came in; and `"warnings"` when something was overlooked.
    Options are those of `SegmentOptions`.
    """

    def __init__(self, **options: float) -> None:
        try:
            self.options = SegmentOptions(**options)
        except TypeError as error:
            raise ConfigError(f"vad.segments: {error}") from None

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        found = payload.tensors.get("probabilities")
        if not isinstance(found, np.ndarray) or found.ndim != 1:
            got = list(found.shape) if isinstance(found, np.ndarray) else type(found).__name__
            raise InvalidInput(f"vad.segments: `probabilities` is {got}; expected shape [frames]")
        samples = int(payload.metadata.get("samples", len(found) * FRAME))
        duration_s = float(payload.metadata.get("duration_s", samples / SAMPLE_RATE))
        segmenter = Segmenter(self.options, frame_samples=FRAME, sample_rate=SAMPLE_RATE)
        segments = segmenter.feed(found.tolist()) + segmenter.finish(samples)
        payload.result = {
            "duration_s": round(duration_s, 4),
            "sample_rate": int(payload.metadata.get("source_sample_rate", SAMPLE_RATE)),
            "segments": [_seconds(segment, duration_s) for segment in segments],
        }
        if warnings := payload.metadata.get("warnings"):
            payload.result["warnings"] = list(warnings)
        return payload


def _seconds(segment: Segment, duration_s: float) -> dict[str, float]:
    return {
        "start_s": round(segment.start / SAMPLE_RATE, 4),
        "end_s": round(min(segment.end / SAMPLE_RATE, duration_s), 4),
        "confidence": round(segment.confidence, 4),
    }


class VadStream:
    """Speech segments of audio that is still coming in: `feed` chunks of any size, then `finish`.

    The segments are exactly those of the same audio in one piece. One stream belongs to one recording; calls must not
    overlap. `state` is public so that a stream can be put away and taken up again.

    Args:
        model: Silero VAD, sequence variant.
        options: See `SegmentOptions`.
    """

    def __init__(self, model: Inferrer, options: SegmentOptions | None = None) -> None:
        _check_model("vad", model)
        self.state = VadState()
        self.segmenter = Segmenter(options, frame_samples=FRAME, sample_rate=SAMPLE_RATE)
        self._model = model

    async def feed(self, samples: Array, ctx: Context) -> list[Segment]:
        """Take the next samples (float32 [n], 16 kHz); return the segments that have become final."""
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise InvalidInput(f"vad: a chunk is {samples.dtype} {list(samples.shape)}; expected float32 [samples]")
        self.state.samples += len(samples)
        return await self._run(np.concatenate((self.state.tail, samples)), ctx)

    async def finish(self, ctx: Context) -> list[Segment]:
        """End the audio; return the remaining segments."""
        segments: list[Segment] = []
        if missing := -(len(self.state.tail) - CONTEXT) % FRAME:
            segments = await self._run(np.concatenate((self.state.tail, np.zeros(missing, np.float32))), ctx)
        return segments + self.segmenter.finish(self.state.samples)

    async def _run(self, buffer: Array, ctx: Context) -> list[Segment]:
        frames = frame_view(buffer, FRAME, CONTEXT)
        found = await _probabilities(self._model, frames, self.state, ctx, BLOCK_FRAMES)
        self.state.tail = buffer[len(frames) * FRAME :].copy()
        return self.segmenter.feed(found.tolist())
