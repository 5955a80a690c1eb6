"""Speech probabilities into speech segments: a state machine with hysteresis, fed frame by frame.

In: one probability a frame. Out: `Segment`s in samples, each released as soon as no later frame can change it. However
the frames are cut into feeds, the segments are the same. The rules are those of Silero VAD's `get_speech_timestamps`
(version 6.2): speech starts at `threshold` and ends below `negative_threshold` when the pause lasts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ConfigError

__all__ = ["Segment", "SegmentOptions", "Segmenter"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Speech from sample `start` to sample `end` (exclusive); `confidence` is the mean probability of its frames."""

    start: int
    end: int
    confidence: float


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """When speech starts and ends.

    Attributes:
        threshold: Probability from which a frame is speech.
        negative_threshold: Probability below which a frame of speech may be a pause; default: threshold - 0.15.
        min_speech_ms: Speech not longer than this is dropped.
        min_silence_ms: A pause this long ends a segment.
        pad_ms: Added on both sides of a segment; two close neighbours share the pause between them.
        max_speech_s: A longer segment is cut, at its longest pause above `min_cut_silence_ms` where it has one.
        min_cut_silence_ms: See `max_speech_s`.
    """

    threshold: float = 0.5
    negative_threshold: float | None = None
    min_speech_ms: float = 250.0
    min_silence_ms: float = 100.0
    pad_ms: float = 30.0
    max_speech_s: float = math.inf
    min_cut_silence_ms: float = 98.0

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ConfigError(f"segments: `threshold` must lie in 0..1, got {self.threshold}")
        if self.negative_threshold is not None and not 0.0 <= self.negative_threshold <= self.threshold:
            raise ConfigError(
                f"segments: `negative_threshold` must lie in 0..threshold ({self.threshold}), "
                f"got {self.negative_threshold}"
            )
        for key in ("min_speech_ms", "min_silence_ms", "pad_ms", "min_cut_silence_ms"):
            value = getattr(self, key)
            if not 0.0 <= value < math.inf:
                raise ConfigError(f"segments: `{key}` must be 0 or more, got {value}")
        if not self.max_speech_s * 1000 > 2 * self.pad_ms + 100:
            raise ConfigError(
                f"segments: `max_speech_s` must exceed twice the padding and 0.1 s, got {self.max_speech_s}"
            )


class Segmenter:
    """Turns a stream of frame probabilities into segments.

    Args:
        options: See `SegmentOptions`.
        frame_samples, sample_rate: Length of a frame, and Hz.

    Memory: the probabilities of the segment that is being spoken.
    """

    def __init__(
        self, options: SegmentOptions | None = None, *, frame_samples: int = 512, sample_rate: int = 16_000
    ) -> None:
        options = options or SegmentOptions()
        low = options.negative_threshold
        self._high = options.threshold
        self._low = max(options.threshold - 0.15, 0.01) if low is None else low
        self._min_speech = sample_rate * options.min_speech_ms / 1000
        self._min_silence = sample_rate * options.min_silence_ms / 1000
        self._min_cut = sample_rate * options.min_cut_silence_ms / 1000
        self._pad = sample_rate * options.pad_ms / 1000
        self._max_speech = sample_rate * options.max_speech_s - frame_samples - 2 * self._pad
        self._size = frame_samples
        self._frames = 0
        self._start: int | None = None
        self._pause: int | None = None
        self._longest: tuple[int, int] | None = None
        self._spoken: list[float] = []
        self._pending: Segment | None = None
        self._ready: list[Segment] = []

    def feed(self, probabilities: Iterable[float]) -> list[Segment]:
        """Take the next frames; return the segments that have become final."""
        for probability in probabilities:
            self._step(probability, self._frames * self._size)
            self._frames += 1
        # The last frame may be partly filling, so the audio surely reaches only to where it starts.
        reached = max(0, self._frames - 1) * self._size if self._start is None else self._start
        if self._pending is not None and reached - self._pending.end >= 2 * self._pad:
            self._release(int(self._pending.end + self._pad))
        return self._take()

    def finish(self, samples: int) -> list[Segment]:
        """End the audio after `samples` samples; return the remaining segments."""
        if self._start is not None and samples - self._start > self._min_speech:
            self._close(samples)
        self._start = None
        if self._pending is not None:
            self._release(int(min(samples, self._pending.end + self._pad)))
        return self._take()

    def _step(self, probability: float, at: int) -> None:
        """Move on by the frame that starts at sample `at`."""
        if probability >= self._high:
            if self._pause is not None:
                length = at - self._pause
                if length > self._min_cut and (self._longest is None or length > self._longest[1]):
                    self._longest = (self._pause, length)
                self._pause = None
            if self._start is None:
                self._start, self._spoken = at, [probability]
                return
        if self._start is None:
            return
        self._spoken.append(probability)
        if at - self._start > self._max_speech:
            if self._longest is None:
                self._close(at)
                self._forget()
                return
            cut, length = self._longest
            self._close(cut)
            resumed = cut + length
            self._spoken = self._spoken[(resumed - self._start) // self._size :]
            self._start, self._pause, self._longest = resumed, None, None
        if probability < self._low:
            if self._pause is None:
                self._pause = at
            if at - self._pause >= self._min_silence:
                if self._pause - self._start > self._min_speech:
                    self._close(self._pause)
                self._forget()

    def _forget(self) -> None:
        self._start = self._pause = self._longest = None
        self._spoken = []

    def _close(self, end: int) -> None:
        """Keep the speech from `_start` to `end`, padded in front; its end waits for the next."""
        assert self._start is not None
        frames = self._spoken[: -(-(end - self._start) // self._size)]
        before = self._pad
        if self._pending is not None:
            gap = self._start - self._pending.end
            after = self._pad
            if gap < 2 * self._pad:
                before = after = gap // 2
            self._release(int(self._pending.end + after))
        self._pending = Segment(int(max(0, self._start - before)), end, sum(frames) / len(frames))

    def _release(self, end: int) -> None:
        assert self._pending is not None
        self._ready.append(Segment(self._pending.start, end, self._pending.confidence))
        self._pending = None

    def _take(self) -> list[Segment]:
        ready, self._ready = self._ready, []
        return ready
