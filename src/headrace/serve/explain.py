"""What a refused setting should have been: msgspec's error and the type asked of it in, a message that helps out."""

from __future__ import annotations

import difflib
import re
from typing import Any

import msgspec
from msgspec import inspect

__all__ = ["explain"]

_PATH = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")


def explain(error: msgspec.ValidationError, kind: Any) -> str:
    """The error's own text; after it the values that an enumeration allows, or the known field that a misspelt one is
    close to. `kind` is the type given to `msgspec.convert`."""
    text = str(error)
    path = _PATH.search(text)
    places = _walk([inspect.type_info(kind)], path[1] if path else "")
    if text.startswith("Invalid enum value"):
        allowed = [value for place in places for value in _values(place) if value != ""]
        return f"{text}; expected {' or '.join(map(repr, allowed))}" if allowed else text
    if unknown := _UNKNOWN.match(text):
        fields = [
            field.encode_name for place in places if isinstance(place, inspect.StructType) for field in place.fields
        ]
        near = difflib.get_close_matches(unknown[1], fields, 1)
        return f"{text}; did you mean `{near[0]}`?" if near else text
    return text


def _walk(places: list[inspect.Type], path: str) -> list[inspect.Type]:
    """The types found at `path` (".stage[0].op") below `places`; unions are looked at in all their parts."""
    places = _parts(places)
    for name, index in _STEP.findall(path):
        below = []
        for place in places:
            if name and isinstance(place, inspect.StructType):
                below += [field.type for field in place.fields if field.encode_name == name]
            elif index and isinstance(place, inspect.ListType | inspect.VarTupleType):
                below.append(place.item_type)
            elif index.isdigit() and isinstance(place, inspect.TupleType):
                below += place.item_types[int(index) : int(index) + 1]
            elif index and isinstance(place, inspect.DictType):
                below.append(place.value_type)
        places = _parts(below)
    return places


def _parts(places: list[inspect.Type]) -> list[inspect.Type]:
    return [part for place in places for part in (place.types if isinstance(place, inspect.UnionType) else (place,))]


def _values(place: inspect.Type) -> list[Any]:
    if isinstance(place, inspect.LiteralType):
        return list(place.values)
    return [member.value for member in place.cls] if isinstance(place, inspect.EnumType) else []
