"""`ctc.greedy`: per-step class probabilities in, text and confidence out.

Greedy decoding of connectionist temporal classification (Graves et al., 2006): take the best class of each step, merge
repeats, drop blanks. The confidence is the mean probability of the steps that were kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, Unavailable
from headrace.serve.infer import best_pairs
from headrace.serve.protocol import Array, Payload

__all__ = ["GreedyCtc", "greedy_decode"]


def greedy_decode(pairs: Array, labels: Sequence[str]) -> tuple[str, float]:
    """Decode (T, 2) pairs of best class and its probability, label 0 being the blank. Returns (text, confidence)."""
    best = pairs[:, 0].astype(np.int64)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    steps = np.flatnonzero(kept)
    if not len(steps):
        return "", 0.0
    chosen = best[steps]
    return "".join([labels[i] for i in chosen]), float(pairs[steps, 1].mean(dtype=np.float64))


class GreedyCtc:
    """Stage `ctc.greedy`: tensor (N, T, C), or ragged rows (T, C) -> `metadata["ctc.texts"]`, `["ctc.confidences"]`.

    Args:
        tensor: The tensor decoded; it is dropped from the payload afterwards.
        pairs: The tensor already holds pairs (best class, probability), as `infer` gives them with `best`.
        model: A served model whose metadata holds the labels, one a line, under `key`; blank comes first and is not
            listed, a space is appended last.
        labels: The labels themselves, instead of `model`.
    """

    def __init__(
        self,
        tensor: str = "steps",
        model: str = "",
        key: str = "character",
        labels: list[str] | None = None,
        pairs: bool = False,
    ) -> None:
        if bool(model) == bool(labels):
            raise ConfigError("ctc.greedy: give either `model` (whose metadata holds the labels) or `labels`")
        self._tensor, self._model, self._key = tensor, model, key
        self._pairs = pairs
        self._models: Callable[[str], Any] | None = None
        self._source = ""
        self._labels: list[str] = ["", *labels] if labels else []

    def bind(self, models: Callable[[str], Any]) -> None:
        self._models = models

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        value = payload.tensors.pop(self._tensor, None)
        if value is None:
            raise InvalidInput(f"ctc.greedy: needs tensor {self._tensor!r}")
        labels = self._current_labels()
        decoded = []
        for row in value:
            width = 2 if self._pairs else len(labels)
            if row.ndim != 2 or row.shape[1] != width:
                raise InvalidInput(f"ctc.greedy: rows must be (T, {width}), got {row.shape}")
            decoded.append(greedy_decode(row if self._pairs else best_pairs(row), labels))
        payload.metadata["ctc.texts"] = [text for text, _ in decoded]
        payload.metadata["ctc.confidences"] = [confidence for _, confidence in decoded]
        return payload

    def _current_labels(self) -> list[str]:
        """The labels of the version that serves now: a reload may bring new ones."""
        if not self._model:
            return self._labels
        if self._models is None:
            raise Unavailable(f"ctc.greedy: model {self._model!r} is not bound to a repository")
        source = self._models(self._model).metadata.get(self._key)
        if source is None:
            raise ConfigError(f"ctc.greedy: model {self._model!r} has no {self._key!r} in its metadata")
        if source is not self._source:
            self._labels, self._source = ["", *source.splitlines(), " "], source
        return self._labels
