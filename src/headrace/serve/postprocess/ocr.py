"""From what the angle classifier and the recogniser said to lines of text.

Strips and the classifier's probabilities -> upright strips in batches of few widths (`ocr.orient`); texts and boxes ->
`payload.result`, the JSON answer, in reading order (`ocr.lines`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.postprocess.boxes import reading_order
from headrace.serve.preprocess.strips import split_strip, squeeze_strip, to_model_range
from headrace.serve.protocol import Array, Payload

__all__ = ["Lines", "Orient", "join_pieces"]


class Orient:
    """Stage `ocr.orient`: turn the strips that lie on their head, then lay out the recogniser's rows.

    The recogniser was trained on short, mostly squeezed words. Long lines are read better in pieces of a few words, and
    a mild squeeze both helps it to see the gaps between words and saves its time, which grows with the width.

    Args:
        tensor: Classifier output (windows, 2), probabilities of upright and upside-down.
        min_confidence: A strip is turned when its windows find "upside-down" at least this probable on average.
        squeeze: Factor (0.5..1] on the width of strips wider than `squeeze_from`.
        max_width: Longer strips are cut at gaps between words.
        min_width, multiple_of: Rows are padded, so that those of several requests share few widths.
        output: Ragged rows float32 (3, height, width).

    Sets `metadata["ocr.pieces"]`, the number of rows of each strip.
    """

    def __init__(
        self,
        tensor: str = "angle",
        min_confidence: float = 0.5,
        squeeze: float = 0.85,
        squeeze_from: int = 96,
        max_width: int = 640,
        min_width: int = 160,
        multiple_of: int = 32,
        output: str = "rows",
    ) -> None:
        if not 0.5 <= min_confidence <= 1 or not 0.5 <= squeeze <= 1:
            raise ConfigError(
                f"ocr.orient: min_confidence and squeeze lie in 0.5..1, got {min_confidence} and {squeeze}"
            )
        if min(multiple_of, squeeze_from) < 1 or not 0 <= min_width <= max_width or max_width < 64:
            raise ConfigError(
                f"ocr.orient: wants multiple_of and squeeze_from >= 1, min_width <= max_width and max_width >= 64, "
                f"got {multiple_of}, {squeeze_from}, {min_width} and {max_width}"
            )
        self._tensor, self._output, self._min_confidence = tensor, output, min_confidence
        self._squeeze, self._squeeze_from, self._max_width = squeeze, squeeze_from, max_width
        self._min_width, self._multiple = min_width, multiple_of

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        angles = payload.tensors.pop(self._tensor, [])
        strips, windows = payload.metadata.pop("ocr.strips"), payload.metadata.pop("ocr.windows")
        boxes = payload.metadata["ocr.boxes"]
        if len(angles) != sum(windows):
            raise InvalidInput(f"ocr.orient: {sum(windows)} windows, but {len(angles)} rows in tensor {self._tensor!r}")
        rows: list[Array] = []
        counts = []
        seen = 0
        for i, strip in enumerate(strips):
            flipped = np.mean([angles[k][1] for k in range(seen, seen + windows[i])]) >= self._min_confidence
            seen += windows[i]
            if flipped:
                boxes[i] = np.roll(boxes[i], 2, axis=0)
            pieces = self._pieces(np.ascontiguousarray(strip[::-1, ::-1]) if flipped else strip)
            rows += [to_model_range(piece, self._padded(piece.shape[1])) for piece in pieces]
            counts.append(len(pieces))
        payload.tensors[self._output] = rows
        payload.metadata["ocr.pieces"] = counts
        return payload

    def _pieces(self, strip: Array) -> list[Array]:
        return split_strip(squeeze_strip(strip, self._squeeze, self._squeeze_from), self._max_width)

    def _padded(self, width: int) -> int:
        return max(self._min_width, -(-width // self._multiple) * self._multiple)


def join_pieces(pieces: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Text and confidence of a line from those of its pieces, which were cut apart at gaps between words.

    Chinese and Japanese write no spaces between words, so none is put next to their characters. The confidence is the
    mean over all characters.
    """
    text = ""
    for piece in (piece.strip() for piece, _ in pieces):
        apart = text and piece and not (_is_cjk(text[-1]) or _is_cjk(piece[0]))
        text += f" {piece}" if apart else piece
    sizes = [max(1, len(piece)) for piece, _ in pieces]
    confidence = sum(size * sure for size, (_, sure) in zip(sizes, pieces, strict=True)) / sum(sizes)
    return text, confidence


def _is_cjk(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef"


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
        boxes = facts["ocr.boxes"]
        read = zip(facts["ctc.texts"], facts["ctc.confidences"], strict=True)
        lines = [join_pieces([next(read) for _ in range(count)]) for count in facts["ocr.pieces"]]
        texts, confidences = [text.strip() for text, _ in lines], [confidence for _, confidence in lines]
        kept = [i for i, text in enumerate(texts) if text and confidences[i] >= self._min_confidence]
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
