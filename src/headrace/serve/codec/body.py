"""The body of a request while it arrives: small ones joined from the parser's chunks, large ones received in place."""

from __future__ import annotations

import numpy as np

__all__ = ["DIRECT_BODY_BYTES", "Body"]

DIRECT_BODY_BYTES = 64 * 1024
"""Bodies announced at least this long are received straight into their own buffer."""

ALIGNMENT = 64


class Body:
    """One body of `length` bytes (0 when not announced), whose byte `lead` shall lie on a 64-byte boundary.

    Attributes:
        received: Bytes so far.
        buffer: Where a large body is received, None for a small one. NumPy's allocation is not touched before data
            arrives, so a client that announces much and sends little costs address space, not memory.
    """

    __slots__ = ("_joined", "_single", "buffer", "received")

    def __init__(self, length: int = 0, lead: int = 0) -> None:
        self.received = 0
        self._single = b""
        self._joined: bytearray | None = None
        self.buffer: memoryview | None = None
        if length >= DIRECT_BODY_BYTES:
            self.reserve(length, lead)

    def reserve(self, length: int, lead: int = 0) -> None:
        """Receive into a buffer whatever the length."""
        raw = np.empty(length + ALIGNMENT, np.uint8)
        offset = -(raw.ctypes.data + lead) % ALIGNMENT
        self.buffer = raw[offset : offset + length].data

    @property
    def complete(self) -> bool:
        """All announced bytes of a large body are here."""
        return self.buffer is not None and self.received == len(self.buffer)

    def append(self, chunk: bytes) -> None:
        """Take a piece that came through the parser. Many tiny pieces cost no more than their bytes."""
        end = self.received + len(chunk)
        if self.buffer is not None:
            self.buffer[self.received : end] = chunk
        elif self.received == 0:
            self._single = chunk
        else:
            if self._joined is None:
                self._joined = bytearray(self._single)
            self._joined += chunk
        self.received = end

    def take(self) -> bytes | memoryview:
        if self.buffer is not None:
            return self.buffer
        return self._single if self._joined is None else memoryview(self._joined)
