"""Two stages of one's own: text to letter pairs before the model, scores to an answer after it."""

import numpy as np

from headrace.core.context import Context
from headrace.errors import InvalidInput
from headrace.serve.protocol import Payload

LANGUAGES = ("de", "en", "es", "fr")


def count(payload: Payload, ctx: Context) -> Payload:
    """`payload.text` -> tensor `pairs`, float32 (1, 27 * 27)."""
    codes = np.array([0, *(ord(c) - 96 if "a" <= c <= "z" else 0 for c in payload.text.lower()), 0])
    if not codes.any():
        raise InvalidInput("text: expected at least one letter from a to z")
    payload.tensors["pairs"] = np.bincount(codes[:-1] * 27 + codes[1:], minlength=729).astype(np.float32)[None]
    return payload


def answer(payload: Payload, ctx: Context, *, floor: float = 0.0) -> Payload:
    """Tensor `scores` -> the best language, or none when even the best is below `floor`."""
    scores = np.asarray(payload.tensors["scores"])[0]
    best = int(scores.argmax())
    payload.result = {
        "language": LANGUAGES[best] if scores[best] >= floor else None,
        "scores": {name: round(float(score), 3) for name, score in zip(LANGUAGES, scores, strict=True)},
    }
    return payload
