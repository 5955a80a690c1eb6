"""A compiler's refusal, in; an error that names the user's file and line and says why in one sentence, out."""

from __future__ import annotations

import re

from headrace.errors import InvalidInput
from headrace.rl.envs.definition import Definition
from headrace.rl.envs.walk import Walk

__all__ = ["refusal"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_NOISE = re.compile(
    r"Failed in|During:|There are|- Of which|Overload|With arg|Rejected|raised from|File |<source|\^|>>>|def |$"
)


def refusal(definition: Definition, walked: Walk, name: str, error: BaseException) -> InvalidInput:
    """The `InvalidInput` to raise for what a compiler said of function `name`."""
    text = _COLOURS.sub("", str(error))
    places = [(file, int(line)) for file, line in _PLACE.findall(text) if file in walked.files]
    function = getattr(definition, name)
    file, line = places[-1] if places else (function.__code__.co_filename, function.__code__.co_firstlineno)
    return InvalidInput(f"{file}:{line}: {definition.env.__qualname__}.{name} cannot be compiled: {_reason(text)}")


def _reason(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if not _NOISE.match(line.strip())), text)
