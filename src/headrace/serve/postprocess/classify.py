"""`classify.top`: a classifier's scores in, the most probable classes out.

Tensor (N, C) of logits or probabilities -> `payload.result`, `{"classes": [{"label", "index", "probability"}]}` for one
row, `{"rows": [...]}` for several.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.protocol import Array, Payload

__all__ = ["TopClasses", "softmax"]


def softmax(logits: Array) -> Array:
    """exp(x) / sum(exp(x)) over the last axis, float32; shifted by the maximum, so large logits do not overflow."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float32)
    normalised: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return normalised


class TopClasses:
    """Stage `classify.top`.

    Args:
        tensor: Scores (N, C).
        k: How many classes to report, best first.
        labels: Names of the C classes; default: their indices.
        logits: Whether softmax must be applied first.
    """

    def __init__(self, tensor: str, k: int = 5, labels: list[str] | None = None, logits: bool = True) -> None:
        if k < 1:
            raise ConfigError(f"classify.top: k must be at least 1, got {k}")
        self._tensor, self._k, self._labels, self._logits = tensor, k, labels, logits

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        scores = payload.tensors.get(self._tensor)
        if scores is None or isinstance(scores, list) or scores.ndim != 2 or 0 in scores.shape:
            raise InvalidInput(f"classify.top: tensor {self._tensor!r} must be scores of shape (N, C)")
        if self._labels is not None and len(self._labels) != scores.shape[1]:
            raise InvalidInput(f"classify.top: {len(self._labels)} labels for {scores.shape[1]} classes")
        rows = [self._top(row) for row in (softmax(scores) if self._logits else scores)]
        payload.result = {"classes": rows[0]} if len(rows) == 1 else {"rows": rows}
        return payload

    def _top(self, row: Array) -> list[dict[str, Any]]:
        best = np.argsort(-row, kind="stable")[: self._k]
        names = self._labels
        return [
            {"label": names[i] if names else str(i), "index": int(i), "probability": round(float(row[i]), 6)}
            for i in best
        ]
