import io
import json
import logging
from datetime import UTC, datetime

import pytest

from headrace.core.context import Context
from headrace.core.logs import fields, setup
from headrace.errors import ConfigError


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _root_logger_as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format="json", level="info", stream=None):
    stream = stream or io.StringIO()
    setup(log_format, level, stream)
    return logging.getLogger("headrace.test"), stream


def test_auto_writes_text_on_a_terminal_and_json_elsewhere():
    log, terminal = logged("auto", stream=Terminal())
    log.warning("careful")
    assert terminal.getvalue().endswith("WARNING\x1b[0m headrace.test: careful\n")
    log, pipe = logged("auto")
    log.warning("careful")
    assert json.loads(pipe.getvalue())["message"] == "careful"


def test_json_carries_the_fields_of_the_request():
    log, stream = logged()
    log.info("took %d rows", 3, extra=fields(Context("r1"), model="m", stage="decode") | {"rows": 3})
    entry = json.loads(stream.getvalue())
    written = datetime.fromisoformat(entry.pop("time"))
    assert abs((datetime.now(UTC) - written).total_seconds()) < 60
    assert entry == {
        "level": "info",
        "logger": "headrace.test",
        "message": "took 3 rows",
        "request_id": "r1",
        "model": "m",
        "stage": "decode",
        "rows": 3,
    }


def test_text_shows_the_fields_and_has_no_colours_off_a_terminal():
    log, stream = logged("text")
    log.error("failed", extra=fields(Context("r1"), model="m"))
    assert stream.getvalue().endswith("ERROR headrace.test: failed  [request_id=r1 model=m]\n")


def test_empty_fields_are_left_out():
    assert fields() == {}
    assert fields(None, stage="s") == {"stage": "s"}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_message_cannot_forge_a_line(log_format):
    log, stream = logged(log_format)
    log.info("user\n12:00:00 ERROR forged\rx", extra={"model": "a\nb"})
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("evil", ["\r\x1b[2J", "\u2028\u0085", "x]  [request_id=other", "\u202e"])
def test_a_field_cannot_forge_another(evil):
    log, stream = logged("text")
    log.info("hello", extra={"request_id": evil})
    line = stream.getvalue().rstrip("\n")
    assert not any(character in line for character in "\r\n\x1b\u2028\u0085\u202e")
    assert line.count("[request_id=") == 1 or '[request_id="' in line


def test_an_exception_is_one_json_line_with_its_traceback():
    log, stream = logged()
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("stage failed", stack_info=True)
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["error"] == "ValueError: broken"
    assert "test_logs.py" in entry["traceback"]
    assert "Stack" in entry["stack"]


def test_an_exception_in_text_follows_its_line():
    log, stream = logged("text")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("stage failed", stack_info=True)
    assert "stage failed\nTraceback" in stream.getvalue()
    assert "ValueError: broken\nStack" in stream.getvalue()


def test_values_that_json_cannot_hold_do_not_lose_the_line():
    log, stream = logged()
    cycle = []
    cycle.append(cycle)
    for value in (object(), float("nan"), cycle, {(1, 2): 3}, b"\xff"):
        log.info("odd", extra={"value": value})
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [entry["message"] for entry in entries] == ["odd"] * 5


def test_levels_filter_and_a_second_setup_replaces_the_first():
    _, first = logged()
    log, second = logged(level="WARNING")
    log.info("quiet")
    log.warning("loud")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match=r"log level.*'loud'"):
        setup("text", "loud")
    with pytest.raises(ConfigError, match=r"log format.*'xml'"):
        setup("xml")
