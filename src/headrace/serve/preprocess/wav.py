"""WAV files that lie about their length, set right before they are decoded.

In: the bytes of a RIFF/WAVE file. Out: the same bytes, or a plain copy whose header tells the truth, and one warning
for each thing that had to be overlooked. What players play is accepted; only a file without samples to find is refused.
"""

from __future__ import annotations

import struct

from headrace.errors import InvalidInput

__all__ = ["repair_wav"]

_OPEN_LENGTH = 0xFFFFFFFF
_EXACT_SAMPLES = {1, 3, 0xFFFE}
"""Format tags (PCM, float, extensible) whose block is one sample of each channel."""


def repair_wav(data: bytes) -> tuple[bytes, list[str]]:
    """Return WAV bytes whose sizes are true, and what was wrong with them.

    The length of the samples is taken from the header as far as bytes are there for it, and from the bytes when a
    streaming writer left it open (0xFFFFFFFF, or 0 with bytes behind it). RF64 keeps its sizes elsewhere and is passed
    on untouched. Memory: at most one copy of `data`, only when something was wrong.

    Raises:
        InvalidInput: no `fmt ` or `data` chunk can be reached.
    """
    if data[:4] != b"RIFF":
        return data, []
    warnings: list[str] = []
    fmt, start, claimed = _find_chunks(data, warnings)
    there = len(data) - start
    size = claimed
    if claimed == _OPEN_LENGTH or (claimed == 0 and there and not _are_extras(data, start)):
        size = there
        warnings.append(f"WAV header leaves the length open; took all {there} bytes after it as samples")
    elif claimed > there:
        size = there
        warnings.append(f"WAV header claims {claimed} bytes of samples; only {there} came")
    elif not _are_extras(data, start + claimed + claimed % 2):
        warnings.append(
            f"ignored {there - claimed} bytes after the {claimed} bytes of samples that the WAV header claims"
        )
    tag, align = struct.unpack_from("<H", fmt)[0], struct.unpack_from("<H", fmt, 12)[0]
    if tag in _EXACT_SAMPLES and align and size % align:
        warnings.append(f"ignored {size % align} bytes at the end of the WAV samples: less than one frame of {align}")
        size -= size % align
    if not warnings:
        return data, warnings
    head = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"\0" * (len(fmt) % 2) + b"data" + struct.pack("<I", size)
    samples = data[start : start + size]
    return b"".join((b"RIFF", struct.pack("<I", len(head) + size), head, samples, b"\0" * (size % 2))), warnings


def _find_chunks(data: bytes, warnings: list[str]) -> tuple[bytes, int, int]:
    """Return the body of `fmt `, and where the samples start and how many bytes of them are claimed."""
    at, fmt = 12, b""
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        body = at + 8
        if name == b"data":
            if not fmt:
                raise InvalidInput("WAV: the `data` chunk comes before any `fmt ` chunk that would describe it")
            return fmt, body, size
        if body + size > len(data):
            raise InvalidInput(
                f"WAV: chunk {name!r} at byte {at} claims {size} bytes, {len(data) - body} are left and no samples came"
            )
        if name == b"fmt ":
            if size < 16:
                raise InvalidInput(f"WAV: the `fmt ` chunk has {size} bytes; expected at least 16")
            fmt = data[body : body + size]
        at = body + size
        if size % 2:
            if _is_name(data[at : at + 4]) and not _is_name(data[at + 1 : at + 5]):
                warnings.append(f"WAV chunk {name!r} has an odd size and no padding byte")
            else:
                at += 1
    raise InvalidInput(f"WAV: {len(data)} bytes came and they end before any `data` chunk")


def _are_extras(data: bytes, at: int) -> bool:
    """Whether everything from `at` on is whole chunks that may follow the samples (tags, cue points …), or nothing."""
    while at + 8 <= len(data) and _is_name(data[at : at + 4]) and data[at : at + 4] not in (b"fmt ", b"data"):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return at - 1 <= len(data) <= at


def _is_name(name: bytes) -> bool:
    """Whether these can be the four characters that name a chunk."""
    return len(name) == 4 and all(32 <= byte < 127 for byte in name)
