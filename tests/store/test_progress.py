import os
import pty
import subprocess
import sys

import pytest

from headrace.store.progress import Lines, Silent, format_bytes, make_progress


def test_without_a_terminal_each_step_is_one_line_on_stderr(capsys):
    progress = make_progress()
    assert isinstance(progress, Lines)
    with progress.step("copying", 4_700_000) as step:
        step.advance(1)
        step.at(1, 2)
    progress.note("[done]")
    assert capsys.readouterr() == ("", "copying (4.7 MB)\n[done]\n")


def test_quiet_is_silent(capsys):
    progress = make_progress(quiet=True)
    assert isinstance(progress, Silent)
    with progress.step("copying") as step:
        step.advance(1)
        step.at(1, 2)
    progress.note("x")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_text_is_never_markup():
    script = (
        "from headrace.store.progress import make_progress, Bars\n"
        "p = make_progress()\n"
        "assert isinstance(p, Bars)\n"
        "p.note('[red]note[/red]')\n"
        "with p.step('[b]copying', 2_000_000) as s: s.advance(1_000_000); s.at(2_000_000, 2_000_000)\n"
    )
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", script], stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # Linux answers EIO when the other end is closed
        pass
    finally:
        os.close(ours)
        assert child.wait(30) == 0
    assert b"[red]note[/red]" in shown
    assert b"[b]copying" in shown


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (4_745_517, "4.75 MB"), (3e12, "3 TB")],
)
def test_sizes_are_short(size_bytes, text):
    assert format_bytes(size_bytes) == text
