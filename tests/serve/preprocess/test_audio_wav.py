"""WAV files that lie about their length, one lie at a time."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import HeadraceError, InvalidInput
from headrace.serve.preprocess.audio import DecodeAudio
from headrace.serve.preprocess.wav import repair_wav
from headrace.serve.protocol import Payload

PCM = (np.sin(np.arange(8_000) / 10) * 16_000).astype("<i2").tobytes()


def wav(samples=PCM, claimed=None, riff=None, *, before=b"", after=b"", align=2, fmt_size=16):
    """A 16 kHz mono 16-bit WAV; `claimed` and `riff` are the sizes its header states."""
    fmt = struct.pack("<IHHIIHH", fmt_size, 1, 1, 16_000, 32_000, align, 16)
    size = len(samples) if claimed is None else claimed
    body = b"WAVEfmt " + fmt + before + b"data" + struct.pack("<I", size) + samples + after
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


def chunk(name, body, pad=True):
    return name + struct.pack("<I", len(body)) + body + (b"\0" * (len(body) % 2) if pad else b"")


def decode(data):
    payload = DecodeAudio().process(Payload(data=data), Context())
    return (payload.tensors["audio"] * 32768).astype("<i2").tobytes(), payload.metadata["warnings"]


@pytest.mark.parametrize(
    "data",
    [
        wav(),
        wav(riff=0),
        wav(before=chunk(b"LIST", b"abc")),
        wav(after=chunk(b"LIST", b"abc")),
        wav(after=chunk(b"id3 ", b"abcd") + chunk(b"cue ", b"")),
    ],
)
def test_an_honest_file_passes_untouched(data):
    assert repair_wav(data) == (data, [])
    assert decode(data) == (PCM, [])


@pytest.mark.parametrize(
    ("data", "samples", "says"),
    [
        (wav(claimed=len(PCM) * 100), PCM, "claims 1600000 bytes of samples; only 16000 came"),
        (wav(claimed=0xFFFFFFFE), PCM, "claims 4294967294 bytes of samples; only 16000 came"),
        (wav(claimed=0xFFFFFFFF, riff=0xFFFFFFFF), PCM, "leaves the length open; took all 16000 bytes"),
        (wav(claimed=0, riff=0), PCM, "leaves the length open; took all 16000 bytes"),
        (wav(claimed=1_000), PCM[:1_000], "ignored 15000 bytes after the 1000 bytes"),
        (wav(after=b"\xffjunk junk"), PCM, "ignored 10 bytes after"),
        (wav()[:-1_001], PCM[:14_998], "only 14999 came"),
        (wav(PCM[:-1]), PCM[:-2], "less than one frame of 2"),
        (wav(before=chunk(b"LIST", b"abc", pad=False)), PCM, "odd size and no padding"),
    ],
)
def test_a_lie_is_overlooked_and_said(data, samples, says):
    heard, warnings = decode(data)
    assert heard == samples
    assert any(says in warning for warning in warnings), warnings


def test_only_the_first_of_two_data_chunks_is_heard():
    heard, warnings = decode(wav(after=chunk(b"data", PCM)))
    assert heard == PCM
    assert "ignored 16008 bytes" in warnings[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (wav()[:30], "claims 16 bytes, 10 are left"),
        (wav()[:40], "end before any `data` chunk"),
        (wav(b""), "no samples"),
        (wav(b"\0"), "no samples"),
        (wav(fmt_size=8), "expected at least 16"),
        (wav(before=b"LIST" + struct.pack("<I", 0x7FFFFFFF) + b"abcd"), "claims 2147483647 bytes"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"data", PCM), "before any `fmt ` chunk"),
        (b"RIFF\0\0\0\0WAVE", "end before any"),
    ],
)
def test_a_file_without_samples_to_find_is_refused(data, says):
    with pytest.raises(InvalidInput, match=says):
        decode(data)


def test_memory_follows_the_bytes_not_the_claim():
    data = wav(claimed=0xFFFFFFF0, riff=0xFFFFFFFF)
    decode(data)
    tracemalloc.start()
    decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@given(st.binary(max_size=200), st.integers(0, 0xFFFFFFFF), st.binary(max_size=40))
def test_whatever_follows_the_first_bytes_is_repaired_or_refused(body, claimed, after):
    for data in (b"RIFF\0\0\0\0WAVE" + body, wav(body, claimed, after=after)):
        try:
            repaired, warnings = repair_wav(data)
        except HeadraceError:
            continue
        assert len(repaired) <= len(data) + 2
        assert (repaired == data) or warnings
        assert repair_wav(repaired) == (repaired, [])
