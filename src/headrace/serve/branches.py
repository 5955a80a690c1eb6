"""Payloads at forks and joins of a pipeline: one payload becomes several, several become one.

Every value of a payload remembers which stage set it (`Branch.owner`), so that a join can tell "both branches set
`scores`" (an error) from "one branch set it, the other still carries the older one" (the newer one wins).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from headrace.errors import ConfigError
from headrace.serve.protocol import Payload

__all__ = ["Branch", "copy_payload", "merge"]

Key: TypeAlias = tuple[Literal["tensor", "metadata", "field"], str]
_FIELDS = ("data", "media_type", "text", "result")


@dataclass(slots=True)
class Branch:
    """A payload and, for each of its values, the stage that set it; values of the request itself have no owner."""

    payload: Payload
    owner: dict[Key, str] = field(default_factory=dict)

    def fork(self) -> Branch:
        """A copy whose dicts are its own and whose arrays, bytes and result are shared."""
        return Branch(copy_payload(self.payload), dict(self.owner))

    def values(self) -> dict[Key, Any]:
        """A snapshot, to be compared after a stage has run."""
        return dict(_values(self.payload))

    def claim(self, before: Mapping[Key, Any], stage: str) -> None:
        """Make `stage` the owner of every value that is not the one of `before`."""
        for key, value in _values(self.payload):
            if key not in before or before[key] is not value:
                self.owner[key] = stage


def copy_payload(payload: Payload) -> Payload:
    """A shallow copy: tensors and metadata are new dicts with the same values."""
    return Payload(
        payload.data,
        payload.media_type,
        payload.text,
        dict(payload.tensors),
        dict(payload.metadata),
        payload.result,
    )


def merge(branches: Sequence[Branch], ancestors: Mapping[str, Collection[str]]) -> Branch:
    """Join branches, in their order, into one.

    The union of all values. Where two differ, a value set later on the same path wins over the one it replaced; of two
    set side by side, the later branch's metadata wins, an empty text, data or result gives way, and anything else is a
    `ConfigError` naming both stages. `ancestors` gives, for each stage, all stages before it.
    """
    joined = branches[0].fork()
    kept = joined.values()
    for branch in branches[1:]:
        for key, value in _values(branch.payload):
            owner = branch.owner.get(key, "")
            if key not in kept or _replaces(key, kept[key], joined.owner.get(key, ""), value, owner, ancestors):
                kept[key] = value
                _store(joined.payload, key, value)
                if owner:
                    joined.owner[key] = owner
    return joined


def _replaces(
    key: Key, old: Any, old_owner: str, new: Any, new_owner: str, ancestors: Mapping[str, Collection[str]]
) -> bool:
    """Whether the later branch's value takes the place of the one kept so far."""
    if old is new or not new_owner or new_owner == old_owner or new_owner in ancestors.get(old_owner, ()):
        return False
    if not old_owner or old_owner in ancestors.get(new_owner, ()):
        return True
    kind, name = key
    if kind == "metadata":
        return True
    if kind == "field":
        if _empty(new) or _empty(old):
            return _empty(old)
        if name != "result" and old == new:
            return False
    what = f"tensor {name!r}" if kind == "tensor" else name
    raise ConfigError(f"stages {old_owner!r} and {new_owner!r} both set {what}, and their branches meet; rename one")


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | bytes | memoryview) and len(value) == 0)


def _values(payload: Payload) -> Iterator[tuple[Key, Any]]:
    for name, tensor in payload.tensors.items():
        yield ("tensor", name), tensor
    for name, fact in payload.metadata.items():
        yield ("metadata", name), fact
    for name in _FIELDS:
        yield ("field", name), getattr(payload, name)


def _store(payload: Payload, key: Key, value: Any) -> None:
    kind, name = key
    if kind == "tensor":
        payload.tensors[name] = value
    elif kind == "metadata":
        payload.metadata[name] = value
    else:
        setattr(payload, name, value)
