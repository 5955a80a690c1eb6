"""Log set-up on the standard `logging` module: lines for people on a terminal, one JSON object a line elsewhere.

Any logger of the process may pass `extra={"request_id": …, "model": …, "stage": …}`; `fields(ctx, …)` makes that
mapping. Other extras are kept in JSON as they are. Only `setup` changes state, and only that of the root logger.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from headrace.core.context import Context
from headrace.errors import ConfigError

__all__ = ["JsonFormatter", "LogFormat", "TextFormatter", "fields", "setup"]

LogFormat = Literal["auto", "text", "json"]

_FIELDS = ("request_id", "model", "stage")
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31;1m"}


def fields(ctx: Context | None = None, *, model: str = "", stage: str = "") -> dict[str, str]:
    """The `extra=` of a log call about this request, model or stage; empty ones are left out."""
    named = {"request_id": "" if ctx is None else ctx.request_id, "model": model, "stage": stage}
    return {name: value for name, value in named.items() if value}


def setup(log_format: LogFormat = "auto", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Send what the process logs at `level` and above to `stream` (standard error by default).

    "auto" is "text" on a terminal and "json" elsewhere. Calling it again replaces the handler of the call before.

    Returns:
        The handler, now the only one that this module has put on the root logger.

    Raises:
        ConfigError: an unknown format or level.
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"log level: expected debug, info, warning, error or critical, got {level!r}")
    if log_format not in ("auto", "text", "json"):
        raise ConfigError(f"log format: expected auto, text or json, got {log_format!r}")
    as_text = terminal if log_format == "auto" else log_format == "text"
    handler = _Handler(out)
    handler.setFormatter(TextFormatter(colour=terminal) if as_text else JsonFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    return handler


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_PLAIN = re.compile(r"[^\s\[\]=\"]*")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, the fields and extras, and the error with its trace.

    A value that JSON cannot hold is written as its `repr`; so a log call never fails over what it was given.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
            entry["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        try:
            return _printable(json.dumps(entry, default=repr, ensure_ascii=False, allow_nan=False))
        except (ValueError, TypeError):  # NaN, a cycle, or odd keys
            return json.dumps({name: str(value) for name, value in entry.items()}, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`12:00:00.123 WARNING logger: message  [request_id=… model=…]`, and the traceback below it."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = record.levelname
        if self._colour and level in _COLOURS:
            level = f"{_COLOURS[level]}{level}\x1b[0m"
        line = f"{clock}.{int(record.msecs):03d} {level} {record.name}: {_printable(record.getMessage())}"
        extras = _extras(record)
        if extras:
            line += "  [" + " ".join(f"{name}={_field(value)}" for name, value in extras.items()) + "]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            line += "\n" + record.stack_info
        return line


def _printable(text: str) -> str:
    """The text on one line: what moves the cursor, breaks the line or turns the direction is escaped, so that no
    request can forge a log line."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _field(value: object) -> str:
    """A value that cannot be taken for another field: quoted where it holds blanks, brackets or `=`."""
    text = _printable(str(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class _Handler(logging.StreamHandler[TextIO]):
    """Tells the handler that `setup` put up from those of others."""


def _extras(record: logging.LogRecord) -> Mapping[str, Any]:
    """What was passed as `extra=`: the known fields first, then the others in the order they were given."""
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    known = {name: given.pop(name) for name in _FIELDS if given.get(name) not in (None, "")}
    return known | {name: value for name, value in given.items() if name not in _FIELDS}


def _utc(created_s: float) -> str:
    whole, milli = divmod(round(created_s * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milli:03d}Z"
