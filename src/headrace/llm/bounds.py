"""Bounds for code of strangers: what an operator, filter or method is about to make flows in, an error out if too much.

A chat template comes with a checkpoint, which is an untrusted file. Its steps, its time, the size of every value and of
all together are bounded here; `headrace.llm.jinja` sees to it that nothing goes past. A value counts with all that is
in it, as often as it is: no step on it, be it to write it out or to compare it, takes longer than its size.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

__all__ = ["Bounds", "OutOfBounds", "check_size"]

MAX_STEPS = 500_000
MAX_SECONDS = 5.0
MAX_SIZE = 1 << 24
"""Characters of a value's texts and numbers; an item counts `ITEM` more."""
MAX_TOTAL = 1 << 27
"""The same, of all values ever made."""
ITEM = 8
MAX_NUMBER = 10_000
"""For widths, counts and precisions."""

_WIDE = re.compile(r"\d{4}|\*|\{[^{}]*\{")
"""In a format: a width of four digits, or one that an argument gives."""


FORBIDDEN = frozenset({"encode", "maketrans", "to_bytes", "translate"})
"""Methods that make much of little, or bytes, which are not looked after here."""

T = TypeVar("T")


class OutOfBounds(Exception):
    """The code asks for more than it gets."""


class Bounds:
    """Counts for whichever thread runs the code."""

    def __init__(self) -> None:
        self._meter = threading.local()

    @contextmanager
    def running(self) -> Iterator[None]:
        """This thread runs the code."""
        meter = self._meter
        meter.steps, meter.total, meter.until_s = 0, 0, time.monotonic() + MAX_SECONDS
        meter.sizes = {}  # id -> a list or the like that code cannot change, and its size
        try:
            yield
        finally:
            meter.sizes = {}

    def tick(self) -> str:
        """One step: a turn of a loop, a macro, operator, filter or call."""
        self._meter.steps += 1
        self._check_time()
        return ""

    def made(self, value: T) -> T:
        """After an expression that may have made a new value, or took its time; returns it."""
        check_size(self._size(value))
        self.wrote(ITEM * len(value) if isinstance(value, list | tuple | Mapping) else self._size(value))
        self._check_time()
        return value

    def shown(self, value: T) -> T:
        """Before a value is written out; returns it."""
        size = self._size(value)
        check_size(size)
        self.wrote(size)
        return value

    def wrote(self, size: int) -> str:
        """After text that stands in the code as it is."""
        self._meter.total += size
        if self._meter.total > MAX_TOTAL:
            raise OutOfBounds(f"makes values of more than {MAX_TOTAL} characters and items in all")
        return ""

    def joined(self, *parts: Any) -> str:
        """What Jinja's `~` does."""
        self.tick()
        check_size(sum(map(self._size, parts)))
        return self.made("".join(map(str, parts)))

    def operator(self, operator: str, left: Any, right: Any) -> None:
        """Before `left operator right`."""
        self.tick()
        if operator == "%" and isinstance(left, str):
            _check_format(left)
            check_size(len(left) + left.count("%") * self._size(right))
        elif operator == "**":
            _check_numbers(left, right)
        elif operator == "*":
            check_size(self._factor(left) * self._factor(right))
        elif operator == "+":
            check_size(self._size(left) + self._size(right))

    def method(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Before a call, which may be one of a text's own methods; returns the arguments to call it with."""
        self.tick()
        method = getattr(function, "__wrapped__", function)  # Jinja's sandbox wraps `format`
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if name in FORBIDDEN:
            raise OutOfBounds(f"calls {name}()")
        if not isinstance(text, str):
            return args
        given = [*args, *(value for key, value in kwargs.items() if not key.startswith("_"))]
        if name in ("format", "format_map"):
            _check_format(text)
            check_size(len(text) + text.count("{") * sum(map(self._size, given)))
        elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
            _check_numbers(*given)
            check_size((len(text) + 1) * max([8, *(value for value in given if isinstance(value, int))]))
        elif name == "replace" and len(args) > 1:
            _check_replacement(text, args[0], args[1])
        elif name == "join" and args:
            args = ([*args[0]],)
            check_size(self._size(args[0]) + len(args[0]) * len(text))
        return args

    def filter(self, name: str, function: Callable[..., Any], passed: tuple[type, ...]) -> Callable[..., Any]:
        """The same filter, which checks what it is given and what it makes; `passed` are types of Jinja's own."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            first = int(isinstance(args[0], passed))
            value, given = args[first], [*args[first + 1 :], *kwargs.values()]
            if name not in ("d", "default"):
                _check_numbers(*given)
            if name == "join":
                value = [*value]
                args = (*args[:first], value, *args[first + 1 :])
                check_size(self._size(value) + len(value) * max(map(self._size, given), default=0))
            elif name == "sum" and any(isinstance(each, list | tuple) for each in given):
                raise OutOfBounds("sums up lists; expected numbers")
            elif name == "indent":
                check_size((self._size(value) + 1) * max([4, *map(self._factor, given)]))
            elif name == "replace" and len(given) > 1:
                check_size(self._size(value))
                _check_replacement(str(value), given[0], given[1])
            check_size(self._size(value))
            return self.made(function(*args, **kwargs))

        call.__dict__.update(getattr(function, "__dict__", {}))  # how Jinja knows what else to pass
        return call

    def _check_time(self) -> None:
        if self._meter.steps > MAX_STEPS or time.monotonic() > self._meter.until_s:
            raise OutOfBounds(f"takes more than {MAX_STEPS} steps or {MAX_SECONDS:g} s")

    def _size(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if isinstance(value, Mapping):
            items: Iterable[Any] = chain.from_iterable(value.items())
        elif isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
            items = value
        else:
            return 1
        sizes = self._meter.sizes
        if id(value) not in sizes:
            sizes[id(value)] = value, sum(ITEM + self._size(item) for item in items)
        return int(sizes[id(value)][1])

    def _factor(self, value: Any) -> int:
        return abs(value) if isinstance(value, int) else self._size(value)

    def pattern(self, pattern: str) -> str:
        """A pattern for `strftime`."""
        if len(pattern) > 100:
            raise OutOfBounds(f"asks for the time in a pattern of {len(pattern)} characters; expected at most 100")
        _check_format(pattern)
        return pattern


def check_size(size: int) -> None:
    """Raise `OutOfBounds` for a value that is too large."""
    if size > MAX_SIZE:
        raise OutOfBounds(f"makes a value of more than {MAX_SIZE} characters and items")


def _check_numbers(*values: Any) -> None:
    for value in values:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise OutOfBounds(f"uses {value:g} as a width or count; expected at most {MAX_NUMBER}")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise OutOfBounds(f"formats with {text[:40]!r}, which may be too wide")


def _check_replacement(text: str, old: Any, new: Any) -> None:
    check_size(len(text) + text.count(str(old)) * len(str(new)))
