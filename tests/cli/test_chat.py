"""`headrace chat` as a person at a terminal uses it, and what a conversation remembers."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.chat import Conversation
from headrace.errors import InvalidInput
from headrace.llm import Engine, SamplingParams
from headrace.testing.language import save_language_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model(tmp_path_factory.mktemp("language") / "tiny.gguf", context=60_000)


def test_the_oldest_turns_make_room_for_the_newest(model: Path) -> None:
    with Engine.load(model, 1, max_context=128) as engine:
        talk = Conversation(engine, SamplingParams(max_tokens=20), "Be brief.")
        told = [talk.ask("Hello") for _ in range(8)]
        assert [message["role"] for message in talk.messages[:3]] == ["system", "user", "assistant"]
        assert "messages forgotten" not in told[0]
        assert "the oldest 2 messages forgotten" in told[-1]
        kept = list(talk.messages)
        with pytest.raises(InvalidInput, match="context of 128"):
            talk.ask("Hello " * 100)
        assert talk.messages == kept[:1] + kept[len(kept) - len(talk.messages) + 1 :]
        assert talk.ask("Hello").startswith("[20 tokens")


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, *args: str, cwd: Path) -> None:
        self._main, side = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *args],
            stdin=side, stdout=side, stderr=side, env=environment, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        os.close(side)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def until(self, pattern: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        """What comes up to a match of `pattern`, the match included; `meanwhile` is done after each silent second."""
        deadline_s = time.monotonic() + 60
        while not (found := re.search(pattern, self._unread)):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"no {pattern!r} in {self._unread!r}")
            if select.select([self._main], [], [], 1)[0]:
                self._unread += os.read(self._main, 65536).decode("utf-8", "replace")
            else:
                meanwhile()
        text, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return text

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._main)


@pytest.fixture
def terminal(model: Path, tmp_path: Path) -> Iterator[Terminal]:
    options = ("--temperature", "0", "--max-tokens", "0", "--threads", "1", "--system", "Be brief.")
    opened = Terminal("chat", str(model), *options, cwd=tmp_path)
    opened.until("/help lists the commands")
    yield opened
    opened.close()


def test_a_person_asks_stops_saves_and_leaves(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("> ")
    terminal.type("Hello\n")
    terminal.until(r"Hello\r?\n.{20}")  # the answer has begun, and will not end soon
    terminal.interrupt()
    told = terminal.until(r"\[\d+ tokens[^\]]*\]")
    assert re.search(r"\[\d+ tokens, \d+ tokens/s, first after \d+ ms, stopped\]", told)
    terminal.until("> ")
    terminal.interrupt()  # at the prompt it drops the line, no more
    terminal.until("> ", terminal.interrupt)  # one that comes just before `input` waits is noticed at the next key only
    terminal.type("/help\n")
    terminal.until("Ctrl-C stops the answer")
    terminal.type("/foo\n")
    terminal.until("unknown command: /foo")
    terminal.type("/save\n")
    terminal.until("/save needs a FILE")
    terminal.type("/system\n")
    terminal.until(r"Be brief\.")
    terminal.type("/save talk.json\n")
    terminal.until("3 messages written to talk.json")
    terminal.type("/save /no/such/folder/talk.json\n")
    terminal.until("No such file or directory")
    messages = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert len(messages[2]["content"]) > 10
    terminal.type("/reset\n")
    terminal.until("begun anew")
    terminal.type("/system Be long.\n")
    terminal.until(r"Be long\.")
    terminal.type("/save talk.json\n")
    terminal.until("1 messages written")
    terminal.type("/system -\n")
    terminal.until("no system message")
    terminal.type("/quit\n")
    assert terminal.process.wait(30) == 0


def test_the_end_of_input_ends_the_chat(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.process.wait(30) == 0


def test_a_refused_question_is_told_and_forgotten(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("x\ufdd0" + "".join(chr(c) for c in range(0xFDD1, 0xFDF0)) + "\n")
    terminal.until("no characters")
    terminal.type("/save talk.json\n")
    terminal.until("1 messages written")
