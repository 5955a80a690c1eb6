"""A compiler's refusal, in; an error that names the user's file and line and says why in one sentence, out."""

from __future__ import annotations

import re

from headrace.errors import InvalidInput
from headrace.rl.envs.definition import Definition
from headrace.rl.envs.walk import Walk

__all__ = ["refusal"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r"\b(?:at|from) (\S[^\n]*?) \((\d+)\)")
_NOISE = re.compile(
    r"Failed in|During:|There (is|are) \d|- Of which|Overload|With arg|Rejected|raised from|File |<source|\^|>>>|$"
)
_NO_FUNCTION = re.compile(r"No implementation of function .*?\n\s*>>> (.*?)\n", re.DOTALL)
_GLOBAL = re.compile(r"Untyped global name '(\w+)': Cannot determine Numba type of <class '([\w.]+)'>")
_HINTS = (
    (r"list\(|set\(|<built-in function hash>", "lists, sets and dicts cannot be made in the loop: use Array fields"),
    (r"Only accept returning of array|NRT required", "memory cannot be allocated in the loop: declare an Array field"),
    (r"exception_match", "exceptions cannot be caught in the loop"),
    (r"format spec|unicode_type", "texts cannot be used in the loop"),
    (r"IMPORT_NAME", "import at the top of the module"),
    (r"attribute '_replace'", "make the State anew"),
    (
        r"the machine code calls",
        "it may raise: by an index into a tuple (index an array), by recursion, or by a range of step 0",
    ),
)


def refusal(definition: Definition, walked: Walk, name: str, error: BaseException) -> InvalidInput:
    """The `InvalidInput` to raise for what a compiler said of function `name` of an environment."""
    text = _COLOURS.sub("", str(error))
    # the innermost place comes first
    places = [(file, int(line)) for file, line in _PLACE.findall(text) if file in walked.files]
    code, place = getattr(definition, name).__code__, getattr(error, "loc", None)
    if place is not None and place.filename in walked.files:
        places.append((place.filename, place.line))
    file, line = places[0] if places else (code.co_filename, code.co_firstlineno)
    hints = [hint for pattern, hint in _HINTS if re.search(pattern, text)]
    reason = "; ".join([_reason(text), *hints[:1]])
    return InvalidInput(f"{file}:{line}: {definition.env.__qualname__}.{name} cannot be compiled: {reason}")


def _reason(text: str) -> str:
    if found := _GLOBAL.search(text):
        return f"{found[1]} is a {found[2]}; only numbers, tuples, NumPy arrays and functions can be used"
    line = next((line.strip() for line in text.splitlines() if not _NOISE.match(line.strip())), text)
    call = _NO_FUNCTION.search(text)
    if call and line.startswith("No implementation"):
        return f"there is no {call[1].strip()}"
    return line.split(". Raised from")[0].split(", defined at")[0]
