"""Recordings into samples: bytes of a WAV, FLAC, OGG or MP3 file (or raw PCM) in, mono float32 at one rate out.

A file is read, mixed down and resampled block by block, so that memory follows the samples kept and never what a
header claims. What players play is played, with a warning; what cannot be audio is refused by name.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import ConfigError, InvalidInput, PayloadTooLarge, UnsupportedMedia
from headrace.serve.preprocess.wav import repair_wav
from headrace.serve.protocol import Array, Payload

__all__ = ["DecodeAudio", "Resample"]

ACCEPTED = "WAV, FLAC, OGG (Vorbis, Opus) or MP3"
MIN_SAMPLE_RATE = 8_000
_BLOCK = 4096
"""Frames read at once: what is lost at most where a damaged file stops decoding."""


class DecodeAudio:
    """Decode a recording to `tensors["audio"]`: float32, shape [samples], mono, full scale -1..1.

    Args:
        rate: Hz to resample to; None keeps the recording's own.
        max_duration_s, max_channels, max_sample_rate: Limits, checked against the header before any sample is decoded
            and against the samples while they are.

    In: `payload.data`, an encoded file of any bit depth; or, without data, `tensors["audio"]`: float or int16 PCM of
    shape [samples] or [1, samples] with its Hz in `metadata["sample_rate"]`.
    Out: beside the samples, in metadata: `sample_rate` (theirs), `source_sample_rate`, `duration_s`, and `warnings`:
    what was overlooked.
    Raises: `UnsupportedMedia` (no audio that is known here), `PayloadTooLarge` (too long), `InvalidInput`.
    """

    def __init__(
        self,
        rate: int | None = None,
        max_duration_s: float = 600.0,
        max_channels: int = 8,
        max_sample_rate: int = 192_000,
    ) -> None:
        if rate is not None and rate <= 0:
            raise ConfigError(f"audio.decode: `rate` must be above 0 Hz, got {rate}")
        if max_duration_s <= 0 or max_channels < 1 or max_sample_rate < MIN_SAMPLE_RATE:
            raise ConfigError(
                f"audio.decode: expected max_duration_s > 0, max_channels >= 1, max_sample_rate >= {MIN_SAMPLE_RATE}; "
                f"got {max_duration_s}, {max_channels}, {max_sample_rate}"
            )
        self.rate = rate
        self.max_duration_s = max_duration_s
        self.max_channels = max_channels
        self.max_sample_rate = max_sample_rate

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        warnings: list[str] = []
        payload.metadata["warnings"] = warnings
        if len(payload.data) or "audio" not in payload.tensors:
            with _open(bytes(payload.data), warnings) as file:
                self._check(file.samplerate, file.channels, file.frames)
                floats = file.subtype in ("FLOAT", "DOUBLE")
                self._finish(payload, _read(file, warnings), file.samplerate, floats, ctx)
        else:
            samples, source_rate = _pcm(payload)
            self._check(source_rate, 1, len(samples))
            scale = np.float32(1 / 32768) if samples.dtype == np.int16 else np.float32(1)
            blocks = (
                (samples[at : at + _BLOCK].astype(np.float32) * scale)[:, None] for at in range(0, len(samples), _BLOCK)
            )
            self._finish(payload, blocks, source_rate, samples.dtype != np.int16, ctx)
        return payload

    def _check(self, rate: int, channels: int, frames: int) -> None:
        if not MIN_SAMPLE_RATE <= rate <= self.max_sample_rate:
            raise InvalidInput(f"audio: {rate} Hz came; accepted: {MIN_SAMPLE_RATE} to {self.max_sample_rate} Hz")
        if channels > self.max_channels:
            raise InvalidInput(f"audio: {channels} channels came; accepted: at most {self.max_channels}")
        # A streaming encoder leaves the count open, which reads as the largest integer: then only the samples tell.
        if frames < 2**62 and frames > self.max_duration_s * rate:
            raise PayloadTooLarge(f"audio: {frames / rate:.1f} s came; accepted: at most {self.max_duration_s:g} s")

    def _finish(self, payload: Payload, blocks: Iterator[Array], source_rate: int, floats: bool, ctx: Context) -> None:
        """Check, mix down and resample `blocks` (float32 [frames, channels]) into the payload."""
        warnings: list[str] = payload.metadata["warnings"]
        frames, peak = 0, 1.0

        def mono() -> Iterator[Array]:
            nonlocal frames, peak
            for block in blocks:
                ctx.check()
                if floats:
                    peak = max(peak, _check_floats(block, frames, source_rate))
                    np.clip(block, -1.0, 1.0, out=block)
                frames += len(block)
                self._check(source_rate, 1, frames)
                yield block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)

        rate = self.rate or source_rate
        audio = _resample(mono(), source_rate, rate)
        if not frames:
            raise InvalidInput("audio: the recording holds no samples; expected at least one")
        if peak > 1.0:
            warnings.append(f"float samples reach {peak:g}; clipped to -1..1")
        payload.tensors["audio"] = audio
        payload.metadata |= {
            "sample_rate": rate,
            "source_sample_rate": source_rate,
            "duration_s": frames / source_rate,
        }


class Resample:
    """Resample `tensors["audio"]`, float32 [samples], from `metadata["sample_rate"]` to `rate` Hz (soxr, its HQ)."""

    def __init__(self, rate: int) -> None:
        if rate <= 0:
            raise ConfigError(f"audio.resample: `rate` must be above 0 Hz, got {rate}")
        self.rate = rate

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        samples, source_rate = _pcm(payload)

        def blocks() -> Iterator[Array]:
            for at in range(0, len(samples), _BLOCK):
                ctx.check()
                yield samples[at : at + _BLOCK].astype(np.float32, copy=False)

        payload.tensors["audio"] = _resample(blocks(), source_rate, self.rate)
        payload.metadata["sample_rate"] = self.rate
        return payload


def _open(data: bytes, warnings: list[str]) -> Any:
    """Open an encoded file as a `soundfile.SoundFile` that is read from front to back."""
    if not data:
        raise InvalidInput(f"audio: 0 bytes came; expected a {ACCEPTED} file")
    if not _looks_like_audio(data):
        raise UnsupportedMedia(f"audio: {len(data)} bytes that start with {data[:8]!r} came; accepted: {ACCEPTED}")
    if data[:4] == b"RIFF":
        data, found = repair_wav(data)
        warnings += found
    soundfile = require("soundfile", "audio")

    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.LibsndfileError as error:
        raise InvalidInput(
            f"audio: {len(data)} bytes that start with {data[:4]!r} cannot be decoded ({error.error_string}); "
            f"accepted: {ACCEPTED}"
        ) from None
    # It would seek after each read, which fails on FLAC files of open or wrong length; this reads front to back.
    file.seekable = lambda: False
    return file


def _looks_like_audio(data: bytes) -> bool:
    """Whether the first bytes are those of an accepted format, so that no other decoder ever sees them."""
    head = data[:4]
    if head in (b"RIFF", b"RF64"):
        return data[8:12] == b"WAVE"
    mpeg_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 != 0
    return head in (b"fLaC", b"OggS") or head[:3] == b"ID3" or mpeg_frame


def _read(file: Any, warnings: list[str]) -> Iterator[Array]:
    """Yield float32 blocks [frames, channels]; a file that breaks off keeps what was decoded, with a warning."""
    soundfile = require("soundfile", "audio")
    frames = 0
    while True:
        try:
            block = file.read(_BLOCK, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            if not frames:
                raise InvalidInput(
                    f"audio: no sample of the {file.format} can be decoded ({error.error_string})"
                ) from None
            warnings.append(f"{file.format} breaks off after {frames / file.samplerate:.2f} s ({error.error_string})")
            return
        if not len(block):
            break
        frames += len(block)
        yield block
    if frames < file.frames < 2**62:
        warnings.append(f"{file.format} header claims {file.frames} samples; only {frames} came")


def _pcm(payload: Payload) -> tuple[Array, int]:
    """Return the samples in `tensors["audio"]` as [samples], and their rate in Hz."""
    samples = payload.tensors.get("audio")
    if not isinstance(samples, np.ndarray) or samples.dtype not in (np.float32, np.float64, np.int16):
        got = samples.dtype if isinstance(samples, np.ndarray) else type(samples).__name__
        raise InvalidInput(f"audio: tensor `audio` is {got}; expected PCM of float32, float64 or int16")
    if samples.ndim == 2 and samples.shape[0] == 1:
        samples = samples[0]
    if samples.ndim != 1:
        raise InvalidInput(f"audio: tensor `audio` has shape {list(samples.shape)}; expected [samples] or [1, samples]")
    rate = payload.metadata.get("sample_rate")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or rate != int(rate) or rate <= 0:
        raise InvalidInput(f"audio: raw PCM needs `sample_rate` in Hz as a whole number; got {rate!r}")
    return samples, int(rate)


def _check_floats(block: Array, frames: int, rate: int) -> float:
    """Return the largest magnitude in `block`; raise `InvalidInput` where it is not a number."""
    peak = float(np.abs(block).max(initial=0.0))
    if not np.isfinite(peak):
        at = frames + int(np.nonzero(~np.isfinite(block))[0][0])
        raise InvalidInput(f"audio: sample {at} ({at / rate:.3f} s) is not a finite number; float PCM lies in -1..1")
    return peak


def _resample(blocks: Iterator[Array], source_rate: int, rate: int) -> Array:
    """Join float32 blocks [samples] at another rate; the result does not depend on how they were cut."""
    if source_rate == rate:
        kept = list(blocks)
    else:
        stream = require("soxr", "audio").ResampleStream(source_rate, rate, 1, dtype="float32")
        kept = [stream.resample_chunk(np.ascontiguousarray(block)) for block in blocks]
        kept.append(stream.resample_chunk(np.zeros(0, np.float32), last=True))
    return np.concatenate(kept) if kept else np.zeros(0, np.float32)
