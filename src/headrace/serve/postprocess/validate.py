"""Validation of what a model answered: a payload in, the same payload, a smaller or a flagged one out, or a refusal.

Every stage takes `action`: "reject" raises `RejectedResult` (422); "drop" removes the rows or items at fault; "flag"
keeps everything and says what is wrong in `payload.metadata["flags"]`, a list of strings, and, where the result is a
JSON object, in its key "flags".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from headrace.core.context import Context
from headrace.core.extras import require
from headrace.errors import ConfigError, RejectedResult
from headrace.serve.protocol import Array, Payload, Ragged

__all__ = ["Confidence", "Finite", "Range", "Schema"]

Action = Literal["reject", "drop", "flag"]


class Finite:
    """`validate.finite`: no NaN, no infinity.

    Args:
        tensors: Names to check; default: every floating-point tensor of the payload.
        action: "drop" removes rows (axis 0), from every tensor of the same number of rows.
    """

    def __init__(self, tensors: Sequence[str] = (), action: Action = "reject") -> None:
        self._tensors = tuple(tensors)
        self._action = _checked(action)

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        names = self._tensors or tuple(name for name, value in payload.tensors.items() if _floating(value))
        for name in names:
            _check_rows(payload, name, np.isfinite, "is not finite", self._action)
        return payload


class Range:
    """`validate.range`: every number lies in [`low`, `high`]; NaN lies nowhere.

    Args:
        tensor: Name of the tensor.
        low, high: Either may be left out.
        action: "drop" removes rows (axis 0), from every tensor of the same number of rows.
    """

    def __init__(
        self, tensor: str, low: float | None = None, high: float | None = None, action: Action = "reject"
    ) -> None:
        if low is None and high is None:
            raise ConfigError("give `low`, `high` or both")
        self._low = -np.inf if low is None else low
        self._high = np.inf if high is None else high
        if not self._low <= self._high:
            raise ConfigError(f"`low` must not be above `high`, got {low} and {high}")
        self._tensor = tensor
        self._action = _checked(action)

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        def inside(array: Array) -> Array:
            return (array >= self._low) & (array <= self._high)

        _check_rows(payload, self._tensor, inside, f"is outside [{self._low:g}, {self._high:g}]", self._action)
        return payload


class Schema:
    """`validate.schema`: the result matches a JSON Schema (draft 2020-12 unless it says otherwise).

    Args:
        schema: The schema as a table. References to other documents are not followed.
        action: "reject" or "flag".
    """

    def __init__(self, schema: Mapping[str, Any], action: Literal["reject", "flag"] = "reject") -> None:
        validators = require("jsonschema.validators", "validate")
        errors = require("jsonschema.exceptions", "validate")
        referencing = require("referencing", "validate")
        if action not in ("reject", "flag"):
            raise ConfigError(f"`action` must be 'reject' or 'flag', got {action!r}")
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except errors.SchemaError as error:
            raise ConfigError(f"`schema` is not a JSON Schema: {error.message} at {error.json_path}") from None
        self._best_match: Callable[[Any], Any] = errors.best_match
        self._unresolvable: type[Exception] = referencing.exceptions.Unresolvable
        self._validator = kind(schema, registry=referencing.Registry())
        self._action = action

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        try:
            error = self._best_match(self._validator.iter_errors(payload.result))
        except self._unresolvable as missing:
            raise ConfigError(f"the schema refers to what is not in it: {missing}") from missing
        if error is not None:
            said = error.message if len(error.message) <= 200 else error.message[:200] + "…"
            _report(payload, f"result does not match the schema at {error.json_path}: {said}", self._action)
        return payload


class Confidence:
    """`validate.confidence`: every item of the result is confident enough.

    Args:
        floor: Smallest value allowed.
        items: Key of the list in the result; "" when the result is itself a list, or one item.
        field: Key of the confidence in each item.
        action: "reject" when any item is below the floor, "drop" those items, or "flag".
    """

    def __init__(self, floor: float, items: str = "", field: str = "confidence", action: Action = "reject") -> None:
        self._floor = floor
        self._items = items
        self._field = field
        self._action = _checked(action)

    def process(self, payload: Payload, ctx: Context, /) -> Payload:
        found = payload.result
        if self._items:
            if not isinstance(found, dict) or not isinstance(found.get(self._items), list):
                raise RejectedResult(f"result has no list {self._items!r} to check confidence in")
            found = found[self._items]
        single = not isinstance(found, list)
        items = [found] if single else found
        doubtful = [i for i, item in enumerate(items) if not self._confident(item)]
        if not doubtful:
            return payload
        if self._action != "drop" or single:
            where = self._items or "result"
            first = "" if single else f"[{doubtful[0]}]"
            value = items[doubtful[0]].get(self._field) if isinstance(items[doubtful[0]], dict) else None
            more = f" (and {len(doubtful) - 1} more)" if len(doubtful) > 1 else ""
            message = f"{where}{first}: {self._field} {value!r} is below {self._floor:g}{more}"
            _report(payload, message, "reject" if self._action == "drop" else self._action)
            return payload
        gone = set(doubtful)
        kept = [item for i, item in enumerate(items) if i not in gone]
        payload.result = {**payload.result, self._items: kept} if self._items else kept
        return payload

    def _confident(self, item: Any) -> bool:
        value = item.get(self._field) if isinstance(item, dict) else None
        return isinstance(value, int | float) and value >= self._floor


def _checked(action: Action) -> Action:
    if action not in get_args(Action):
        raise ConfigError(f"`action` must be 'reject', 'drop' or 'flag', got {action!r}")
    return action


def _floating(value: Array | Ragged) -> bool:
    arrays = value if isinstance(value, list) else [value]
    return any(array.dtype.kind in "fc" for array in arrays)


def _check_rows(payload: Payload, name: str, good: Callable[[Array], Array], what: str, action: Action) -> None:
    value = payload.tensors.get(name)
    if value is None:
        have = ", ".join(sorted(payload.tensors)) or "none"
        raise RejectedResult(f"tensor {name!r} is not there to be checked; there are: {have}")
    keep: Array
    if isinstance(value, list):
        keep = np.array([bool(good(row).all()) for row in value], np.bool_)
    elif value.ndim:
        keep = np.all(good(value).reshape(len(value), math.prod(value.shape[1:])), axis=1)
    else:
        keep = np.array([bool(good(value))])
    if keep.all():
        return
    bad = np.flatnonzero(~keep)
    if action != "drop":
        more = f" (and {len(bad) - 1} more rows)" if len(bad) > 1 else ""
        _report(payload, f"tensor {name!r} row {bad[0]} {_worst(value, int(bad[0]), good)}{what}{more}", action)
        return
    rows = len(keep)
    payload.tensors = {other: _take(tensor, keep, rows) for other, tensor in payload.tensors.items()}


def _worst(value: Array | Ragged, row: int, good: Callable[[Array], Array]) -> str:
    """The first number at fault in a row, for the message."""
    cells = np.asarray(value[row] if isinstance(value, list) or value.ndim else value)
    return f"holds {cells[~np.asarray(good(cells))].flat[0]:g}, which "


def _take(tensor: Array | Ragged, keep: Array, rows: int) -> Array | Ragged:
    if isinstance(tensor, list):
        return [row for row, kept in zip(tensor, keep, strict=True) if kept] if len(tensor) == rows else tensor
    return tensor[keep] if tensor.ndim and len(tensor) == rows else tensor


def _report(payload: Payload, message: str, action: str) -> None:
    if action == "reject":
        raise RejectedResult(message)
    payload.metadata["flags"] = [*payload.metadata.get("flags", ()), message]
    if isinstance(payload.result, dict):
        payload.result = {**payload.result, "flags": [*payload.result.get("flags", ()), message]}
