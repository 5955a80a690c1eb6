"""Recordings whose speech is known: spoken by espeak-ng (or taken from stored clips), set among silences and noise.

In: texts or clips, the pauses between them and a noise level. Out: a `Recording`: its samples, and where the speech is.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.errors import InvalidInput, Unavailable

__all__ = ["Recording", "Samples", "assemble", "clips", "speak", "speech", "trimmed"]

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recording:
    """Mono samples in -1..1 at `sample_rate` Hz, and the spans of speech in them, as (start, end) in seconds."""

    samples: Samples
    sample_rate: int
    speech_s: tuple[tuple[float, float], ...]

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate

    def encode(self, format: str = "WAV", subtype: str | None = None, channels: int = 1) -> bytes:
        """The recording as a file, the same in every channel; formats and subtypes are those of libsndfile."""
        buffer = io.BytesIO()
        data = np.repeat(self.samples[:, None], channels, axis=1)
        require("soundfile", "audio").write(buffer, data, self.sample_rate, format=format, subtype=subtype)
        return buffer.getvalue()


def speak(text: str, *, voice: str = "en", words_per_minute: int = 160, sample_rate: int = 16_000) -> Samples:
    """Let espeak-ng speak `text`; the silence around it is cut off. Raises `Unavailable` when it is not installed."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise Unavailable("espeak-ng is not installed; run: apt-get install espeak-ng")
    command = [program, "--stdout", "-v", voice, "-s", str(words_per_minute), "--", text]
    wav = subprocess.run(command, check=True, capture_output=True, timeout=30).stdout
    return _load(io.BytesIO(wav), sample_rate)


def speech(text: str, *, voice: str = "en") -> bytes:
    """`text` as spoken by espeak-ng, a second of silence around it, as a WAV file. Raises `Unavailable` without it."""
    return assemble([speak(text, voice=voice)], [1.0, 1.0]).encode("WAV", "PCM_16")


def clips(folder: Path, *, sample_rate: int = 16_000) -> list[Samples]:
    """The stored clips `speech_*.flac` and `speech_*.ogg` of a folder in the order of their names, silence cut off."""
    paths = sorted(path for path in folder.glob("speech_*") if path.suffix in (".flac", ".ogg"))
    if not paths:
        raise InvalidInput(f"{folder}: expected speech_*.flac or speech_*.ogg, found none")
    return [_load(path, sample_rate) for path in paths]


def _load(file: io.BytesIO | Path, sample_rate: int) -> Samples:
    samples, rate = require("soundfile", "audio").read(file, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1, dtype=np.float32)
    return trimmed(require("soxr", "audio").resample(mono, rate, sample_rate).astype(np.float32, copy=False))


def trimmed(samples: Samples, floor: float = 0.01) -> Samples:
    """Cut off what lies below `floor` of full scale at both ends."""
    loud = np.nonzero(np.abs(samples) > floor)[0]
    return samples[loud[0] : loud[-1] + 1] if len(loud) else samples[:0]


def assemble(
    utterances: Sequence[Samples],
    pauses_s: Sequence[float],
    *,
    sample_rate: int = 16_000,
    snr_db: float | None = None,
    seed: int = 0,
) -> Recording:
    """Set utterances among pauses: one pause before each utterance and one at the end.

    Args:
        snr_db: Mean power of the speech above that of white noise laid over the whole recording; None: digital silence.
        seed: Of the noise.
    """
    if len(pauses_s) != len(utterances) + 1 or min(pauses_s) < 0:
        raise InvalidInput(
            f"{len(utterances)} utterances need {len(utterances) + 1} pauses of 0 s or more, got {list(pauses_s)}"
        )
    parts, spans, at = [], [], 0
    for pause_s, utterance in zip(pauses_s, [*utterances, np.zeros(0, np.float32)], strict=True):
        gap = round(pause_s * sample_rate)
        parts += [np.zeros(gap, np.float32), utterance]
        at += gap
        if len(utterance):
            spans.append((at / sample_rate, (at + len(utterance)) / sample_rate))
        at += len(utterance)
    samples = np.concatenate(parts)
    if snr_db is not None and spans:
        power = float(np.mean(np.concatenate(utterances, dtype=np.float64) ** 2)) / 10 ** (snr_db / 10)
        noise = np.random.default_rng(seed).normal(0.0, power**0.5, len(samples))
        samples = np.clip(samples + noise, -1.0, 1.0).astype(np.float32)
    return Recording(samples, sample_rate, tuple(spans))
