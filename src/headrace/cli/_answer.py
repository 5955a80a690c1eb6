"""What `headrace infer` prints: a model's arrays or a pipeline's JSON answer in, text for people or programs out."""

from __future__ import annotations

from typing import Any

__all__ = ["as_text", "to_json"]


def _is_tensors(answer: Any) -> bool:
    return isinstance(answer, dict) and bool(answer) and all(hasattr(value, "dtype") for value in answer.values())


def to_json(answer: Any) -> str:
    """One line of JSON; arrays take the form of an Open Inference Protocol response."""
    import msgspec

    if _is_tensors(answer):
        from headrace.serve.tensors import datatype

        answer = {
            "outputs": [
                {"name": name, "datatype": datatype(array.dtype), "shape": list(array.shape), "data": _plain(array)}
                for name, array in answer.items()
            ]
        }
    return msgspec.json.encode(answer).decode()


def _plain(array: Any) -> list[Any]:
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.ravel().tolist()]


def as_text(answer: Any) -> str:
    """Tensors with their values, rows of known shape as a table, anything else as indented JSON."""
    if _is_tensors(answer):
        import numpy as np

        from headrace.serve.tensors import datatype

        return "\n".join(
            f"{name}  {datatype(array.dtype)}{list(array.shape)}\n"
            + np.array2string(array, threshold=200, precision=6, suppress_small=True)
            for name, array in answer.items()
        )
    for key in ("lines", "segments"):
        rows = answer.get(key) if isinstance(answer, dict) else None
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return _table(key, rows)
    import msgspec

    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def _table(key: str, rows: list[dict[str, Any]]) -> str:
    """One line a row: its numbers and texts under their names (boxes and other nested values are left to --json)."""
    if not rows:
        return f"no {key}"
    flat = [{k: v for k, v in row.items() if isinstance(v, str | int | float)} for row in rows]
    heads = sorted({k: None for row in flat for k in row}, key=lambda head: head == "text")
    cells = [[f"{row[h]:.3f}" if isinstance(row.get(h), float) else str(row.get(h, "")) for h in heads] for row in flat]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    texts = [any(isinstance(row.get(head), str) for row in flat) for head in heads]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if is_text else cell.rjust(width)
            for cell, width, is_text in zip(line, widths, texts, strict=True)
        ).rstrip()
        for line in [heads, *cells]
    )
