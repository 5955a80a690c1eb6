"""Samples into frames: overlapping windows of one recording as rows of a matrix, without copying them apart.

In: float32 [samples]. Out: float32 [frames, context + size], where each row starts with the last `context` samples of
the row before it (zeros for the first) and the last row is filled up with zeros.
"""

from __future__ import annotations

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.protocol import Array, Payload

__all__ = ["Frame", "frame_view"]


def frame_view(samples: Array, size: int, context: int) -> Array:
    """View contiguous `samples` (`context` samples of history, then new ones) as rows [frames, context + size].

    Only whole frames are taken; the rows overlap in memory and are read-only.
    """
    count = max(0, (len(samples) - context) // size)
    step = samples.strides[0]
    return np.lib.stride_tricks.as_strided(samples, (count, context + size), (size * step, step), writeable=False)


class Frame:
    """Cut `tensors["audio"]` ([samples]) into `tensors["frames"]` ([frames, context + size]); a read-only view.

    Also leaves the number of samples in `metadata["samples"]`, because the last frame may be partly silence.
    """

    def __init__(self, size: int, context: int = 0) -> None:
        if size < 1 or context < 0:
            raise ConfigError(f"audio.frame: expected size >= 1 and context >= 0, got {size} and {context}")
        self.size = size
        self.context = context

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        audio = payload.tensors.get("audio")
        if not isinstance(audio, np.ndarray) or audio.ndim != 1 or not len(audio):
            got = list(audio.shape) if isinstance(audio, np.ndarray) else type(audio).__name__
            raise InvalidInput(f"audio.frame: tensor `audio` is {got}; expected shape [samples], at least one")
        count = -(-len(audio) // self.size)
        padded = np.zeros(self.context + count * self.size, np.float32)
        padded[self.context : self.context + len(audio)] = audio
        payload.tensors["frames"] = frame_view(padded, self.size, self.context)
        payload.metadata["samples"] = len(audio)
        return payload
