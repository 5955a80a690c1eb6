"""From what the angle classifier and the recogniser said to lines of text.

Strips and the classifier's probabilities -> upright strips in batches of few widths (`ocr.orient`); texts and boxes ->
`payload.result`, the JSON answer, in reading order (`ocr.lines`).
"""

from __future__ import annotations

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.postprocess.boxes import reading_order
from headrace.serve.preprocess.ocr import to_model_range
from headrace.serve.protocol import Payload

__all__ = ["Lines", "Orient"]


class Orient:
    """Stage `ocr.orient`: turn the strips that lie on their head, then lay out the recogniser's rows.

    Args:
        tensor: Classifier output (windows, 2), probabilities of upright and upside-down.
        min_confidence: A strip is turned when its windows find "upside-down" at least this probable on average.
        min_width, multiple_of: Each strip is padded to a multiple, so that rows of several requests share few widths
            and can run together.
        output: Ragged rows float32 (3, height, width).
    """

    def __init__(
        self,
        tensor: str = "angle",
        min_confidence: float = 0.5,
        min_width: int = 320,
        multiple_of: int = 32,
        output: str = "rows",
    ) -> None:
        if not 0.5 <= min_confidence <= 1 or multiple_of < 1 or min_width < 0:
            raise ConfigError(
                f"ocr.orient: wants min_confidence in 0.5..1, multiple_of >= 1 and min_width >= 0, "
                f"got {min_confidence}, {multiple_of} and {min_width}"
            )
        self._tensor, self._output = tensor, output
        self._min_confidence, self._min_width, self._multiple = min_confidence, min_width, multiple_of

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        angles = payload.tensors.pop(self._tensor, [])
        strips, windows = payload.metadata.pop("ocr.strips"), payload.metadata.pop("ocr.windows")
        boxes = payload.metadata["ocr.boxes"]
        if len(angles) != sum(windows):
            raise InvalidInput(f"ocr.orient: {sum(windows)} windows, but {len(angles)} rows in tensor {self._tensor!r}")
        rows = []
        seen = 0
        for i, strip in enumerate(strips):
            flipped = np.mean([angles[k][1] for k in range(seen, seen + windows[i])]) >= self._min_confidence
            seen += windows[i]
            if flipped:
                boxes[i] = np.roll(boxes[i], 2, axis=0)
            width = max(self._min_width, -(-strip.shape[1] // self._multiple) * self._multiple)
            rows.append(to_model_range(strip[::-1, ::-1] if flipped else strip, width))
        payload.tensors[self._output] = rows
        return payload


class Lines:
    """Stage `ocr.lines`: `result = {"width", "height", "lines": [{"text", "confidence", "box"}], "truncated"?}`.

    `box` holds four corners [x, y] in pixels of the upright picture, clockwise from the text's own top-left. Lines that
    are empty or less sure than `min_confidence` are left out. `truncated` is the number of boxes beyond `max_boxes`.
    """

    def __init__(self, min_confidence: float = 0.5) -> None:
        if not 0 <= min_confidence <= 1:
            raise ConfigError(f"ocr.lines: min_confidence lies in 0..1, got {min_confidence}")
        self._min_confidence = min_confidence

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        facts = payload.metadata
        texts, confidences, boxes = facts["ctc.texts"], facts["ctc.confidences"], facts["ocr.boxes"]
        kept = [i for i, text in enumerate(texts) if text.strip() and confidences[i] >= self._min_confidence]
        order = [kept[i] for i in reading_order(boxes[kept])]
        result = {
            "width": facts["image.width"],
            "height": facts["image.height"],
            "lines": [
                {
                    "text": texts[i],
                    "confidence": round(confidences[i], 4),
                    "box": np.round(boxes[i].astype(float), 1).tolist(),
                }
                for i in order
            ],
        }
        if facts.get("ocr.dropped"):
            result["truncated"] = facts["ocr.dropped"]
        payload.result = result
        payload.tensors.clear()
        return payload
