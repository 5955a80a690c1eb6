"""Bounds for code of strangers: what an operator, filter or method is about to make flows in, an error out if too much.

A chat template comes with a checkpoint, which is an untrusted file. Its steps, its time and the size of every value are
bounded here; `headrace.llm.jinja` sees to it that nothing goes past.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Bounds", "OutOfBounds", "check_size"]

MAX_STEPS = 500_000
MAX_SECONDS = 5.0
MAX_SIZE = 1 << 24
"""Characters of a text, items of a list."""
MAX_NUMBER = 10_000
"""For widths, counts and precisions."""

_WIDE = re.compile(r"\d{4}|\*|\{[^{}]*\{")
"""In a format: a width of four digits, or one that an argument gives."""


class OutOfBounds(Exception):
    """The code asks for more than it gets."""


class Bounds:
    """Counts for whichever thread runs the code."""

    def __init__(self) -> None:
        self._meter = threading.local()

    def begin(self) -> None:
        """This thread starts to run the code."""
        self._meter.steps, self._meter.until_s = 0, time.monotonic() + MAX_SECONDS

    def tick(self) -> str:
        """One step: a turn of a loop, a macro, operator, filter or call."""
        meter = self._meter
        meter.steps += 1
        if meter.steps > MAX_STEPS or time.monotonic() > meter.until_s:
            raise OutOfBounds(f"takes more than {MAX_STEPS} steps or {MAX_SECONDS:g} s")
        return ""

    def joined(self, *parts: Any) -> str:
        """What Jinja's `~` does."""
        self.tick()
        texts = [str(part) for part in parts]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def operator(self, operator: str, left: Any, right: Any) -> None:
        """Before `left operator right`."""
        self.tick()
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "**":
            _check_numbers(left, right)
        elif operator == "*":
            check_size(_factor(left) * _factor(right))
        elif operator == "+":
            check_size(_size(left) + _size(right))

    def method(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Before a call, which may be one of a text's own methods."""
        self.tick()
        method = getattr(function, "__wrapped__", function)  # Jinja's sandbox wraps `format`
        text, given = getattr(method, "__self__", None), [*args, *kwargs.values()]
        if not isinstance(text, str):
            return
        name = method.__name__
        if name in ("format", "format_map"):
            _check_format(text)
        elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
            _check_numbers(*given)
            check_size((len(text) + 1) * max([8, *(value for value in given if isinstance(value, int))]))
        elif name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
            check_size(len(text) + text.count(args[0]) * len(args[1]))
        elif name == "join" and args and isinstance(args[0], list | tuple):
            check_size(sum(len(text) + _size(item) for item in args[0]))

    def filter(self, name: str, function: Callable[..., Any], passed: tuple[type, ...]) -> Callable[..., Any]:
        """The same filter, which checks what it is given and what it makes; `passed` are types of Jinja's own."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            given = [value for value in (*args, *kwargs.values()) if not isinstance(value, passed)]
            if name not in ("d", "default"):
                _check_numbers(*given[1:])
            if name in ("indent", "join", "replace"):
                each = _factor if name == "indent" else _size
                check_size((_size(given[0]) + 1) * max([16, *map(each, given[1:])]))
            made = function(*args, **kwargs)
            check_size(_size(made))
            return made

        call.__dict__.update(getattr(function, "__dict__", {}))  # how Jinja knows what else to pass
        return call

    def pattern(self, pattern: str) -> str:
        """A pattern for `strftime`."""
        if len(pattern) > 100:
            raise OutOfBounds(f"asks for the time in a pattern of {len(pattern)} characters; expected at most 100")
        _check_format(pattern)
        return pattern


def check_size(size: int) -> None:
    """Raise `OutOfBounds` for a value that is too large."""
    if size > MAX_SIZE:
        raise OutOfBounds(f"makes a value of more than {MAX_SIZE} characters or items")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 1


def _factor(value: Any) -> int:
    return abs(value) if isinstance(value, int) else _size(value)


def _check_numbers(*values: Any) -> None:
    for value in values:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise OutOfBounds(f"uses {value:g} as a width or count; expected at most {MAX_NUMBER}")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise OutOfBounds(f"formats with {text[:40]!r}, which may be too wide")
