"""`make demo`: real models are pulled, served and asked over HTTP; what comes out is their answers, printed.

A picture with known text goes to the `ocr` pipeline, a speech recording to `vad`, and a question to SmolLM2, whose
answer is printed as it is written. The server then stays up until Ctrl-C, or ends at once with DEMO_ONCE=1. Whatever
fails ends the program with the reason and status 1.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, Unavailable
from headrace.serve.client import Client

if TYPE_CHECKING:
    from headrace.testing.recordings import Recording

__all__ = ["RECIPES", "DemoFailed", "Server", "main"]

RECIPES = ("ocr", "vad", "smollm2")

_HOST = "127.0.0.1"
_PORT = 8000
_START_S = 120.0
_STOP_S = 30.0
_TEXT = (
    "The headrace leads the water to the wheel.",
    "Invoice 2026-1130, due on 14 December",
    "Total: 48.50 EUR",
)
_SPEECH = ("The water runs down the headrace", "and turns the wheel.")
_CHAT_MODEL = "smollm2"
_QUESTION = "Why is the sky blue?"
_ANSWER_TOKENS = 120
_CLIPS = Path(__file__).parents[3] / "tests" / "golden" / "data"


class DemoFailed(HeadraceError):
    """A step of the demo did not do what it should; says which and why."""


def main() -> int:
    """Run the demo; returns the exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    home = Path(os.environ.get("DEMO_HOME", ".demo"))
    try:
        home.mkdir(exist_ok=True)
        repo = home / "models"
        for recipe in RECIPES:
            _say(f"pulling {recipe}")
            _headrace("pull", recipe, "--repo", str(repo))
        with Server(repo, home / "server.log") as server:
            _read_picture(server, home / "picture.png")
            _find_speech(server, home / "speech.wav")
            _chat(server)
            if os.environ.get("DEMO_ONCE") != "1":
                header = "Content-Type: image/png"
                picture = shlex.quote(f"{home}/picture.png")
                _say(f"the server runs at {server.url}; its log is {server.log}")
                _say("Ctrl-C stops it; from another terminal, in this folder:")
                _say(f"try: curl -sS --data-binary @{picture} -H '{header}' {server.url}/v1/pipelines/ocr")
                _say(f"try: {_command()} infer ocr {picture} --url {server.url}")
                asked = json.dumps(_question(stream=False))
                _say(f"try: curl -sS -d {shlex.quote(asked)} {server.url}/v1/chat/completions")
                server.wait()
        _say(f"the server has been stopped; its log is {server.log}")
        _say(f"to serve again: {_command()} serve {shlex.quote(str(repo))}")
        _say(f"to chat:        {_command()} chat {_CHAT_MODEL} --repo {shlex.quote(str(repo))}")
    except KeyboardInterrupt:
        _say("stopped")
    except (HeadraceError, OSError) as error:
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(f"demo: {line}", flush=True)


def _command() -> str:
    """How the `headrace` command of this environment is called from the present folder."""
    script = Path(sys.executable).with_name("headrace")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m headrace"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def _headrace(*args: str) -> None:
    """Run one `headrace` command, its output shown as it comes."""
    run = subprocess.run([sys.executable, "-m", "headrace", *args], check=False)
    if run.returncode != 0:
        raise DemoFailed(f"`headrace {' '.join(args)}` ended with status {run.returncode}")


def _read_picture(server: Server, path: Path) -> None:
    path.write_bytes(_picture(_TEXT))
    _say(f"sending {path}, a picture of {len(_TEXT)} lines of text")
    answer, took_ms = server.ask("ocr", path.read_bytes(), "image/png")
    for written in _TEXT:
        print(f"  written    {written}")
    for line in answer["lines"]:
        print(f"  recognised {line['text']}  (confidence {line['confidence']:.3f})")
    print(f"  in {took_ms:.0f} ms")
    if not answer["lines"]:
        raise DemoFailed("no text was recognised in the picture")


def _find_speech(server: Server, path: Path) -> None:
    recording, said = _recording()
    path.write_bytes(recording.encode("WAV", "PCM_16"))
    _say(f"sending {path}, {said}")
    answer, took_ms = server.ask("vad", path.read_bytes(), "audio/wav")
    for start_s, end_s in recording.speech_s:
        print(f"  spoken from {start_s:.2f} s to {end_s:.2f} s")
    for segment in answer["segments"]:
        print(f"  found from  {segment['start_s']:.2f} s to {segment['end_s']:.2f} s")
    print(f"  in {took_ms:.0f} ms")
    if not answer["segments"]:
        raise DemoFailed("no speech was found in the recording")


def _chat(server: Server) -> None:
    """Ask the language model; the answer is printed piece by piece, then how fast it came."""
    _say(f"asking {_CHAT_MODEL}: {_QUESTION}")
    print("  answered   ", end="", flush=True)
    began_s, first_s = time.perf_counter(), 0.0
    usage: dict[str, Any] = {}
    for event in server.events("/v1/chat/completions", _question(stream=True)):
        for choice in event["choices"]:
            text = choice["delta"].get("content", "")
            first_s = first_s or (time.perf_counter() if text else 0.0)
            print(text.replace("\n", "\n             "), end="", flush=True)
        usage = event.get("usage") or usage
    took_s, tokens = time.perf_counter() - first_s, usage.get("completion_tokens", 0)
    if tokens < 2:
        raise DemoFailed(f"{_CHAT_MODEL} answered nothing")
    print(
        f"\n  {tokens} tokens, {(tokens - 1) / took_s:.0f} tokens/s, the first after {(first_s - began_s) * 1e3:.0f} ms"
    )


def _question(*, stream: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": _CHAT_MODEL, "messages": [{"role": "user", "content": _QUESTION}]}
    asked |= {"max_tokens": _ANSWER_TOKENS, "temperature": 0}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}} if stream else asked


def _picture(lines: tuple[str, ...]) -> bytes:
    """The lines in dark ink on light paper, as a PNG, in the font that Pillow carries."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(36)
    page = Image.new("RGB", (936, 72 + 72 * len(lines)), "#f6f2e8")
    draw = ImageDraw.Draw(page)
    for row, line in enumerate(lines):
        draw.text((40, 36 + 72 * row), line, fill="#202428", font=font)
    out = io.BytesIO()
    page.save(out, "PNG")
    return out.getvalue()


def _recording() -> tuple[Recording, str]:
    """Two utterances among silences, and how they were made: by espeak-ng, or from the clips of the checkout."""
    from headrace.testing.recordings import assemble, clips, speak

    try:
        spoken, said = [speak(text) for text in _SPEECH], "spoken by espeak-ng"
    except Unavailable:
        spoken, said = clips(_CLIPS)[:2], "two stored clips (espeak-ng is not installed)"
    return assemble(spoken, [1.0, 1.5, 1.0]), said


class Server:
    """`headrace serve` as a child process, from ready to gracefully stopped."""

    def __init__(self, repo: Path, log: Path) -> None:
        self.log = log
        port = _free_port()
        self.url = f"http://{_HOST}:{port}"
        self._command = [sys.executable, "-m", "headrace", "serve", str(repo), "--host", _HOST, "--port", str(port)]

    def __enter__(self) -> Server:
        _say(f"starting the server at {self.url}")
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops the server gracefully.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _until_ready(self) -> None:
        give_up = time.monotonic() + _START_S
        with Client(self.url, timeout_s=5) as client:
            while time.monotonic() < give_up:
                if self._process.poll() is not None:
                    raise DemoFailed(f"the server ended with status {self._process.returncode}{self._tail()}")
                if client.ready():
                    return
                time.sleep(0.05)
        raise DemoFailed(f"the server was not ready after {_START_S:.0f} s{self._tail()}")

    def ask(self, pipeline: str, data: bytes, media_type: str) -> tuple[Any, float]:
        """Send `data` through a pipeline; returns its answer and the time it took in milliseconds."""
        began = time.perf_counter()
        try:
            with Client(self.url) as client:
                answer = client.pipeline(pipeline, data, media_type)
        except HeadraceError as error:
            raise DemoFailed(f"pipeline {pipeline!r}: {error}{self._tail()}") from error
        return answer, (time.perf_counter() - began) * 1e3

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """Post JSON and take the server-sent events of the answer as they come."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=_START_S)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise DemoFailed(f"{path}: status {response.status}: {response.read().decode()}{self._tail()}")
            for line in response:
                data = line.decode().strip().removeprefix("data: ")
                if data and data != "[DONE]":
                    event = json.loads(data)
                    if "error" in event:
                        raise DemoFailed(f"{path}: {event['error']['message']}{self._tail()}")
                    yield event
        except (OSError, http.client.HTTPException) as error:
            raise DemoFailed(f"{path}: {error}{self._tail()}") from error
        finally:
            connection.close()

    def wait(self) -> None:
        """Block until the server ends by itself, which is a failure."""
        self._process.wait()
        raise DemoFailed(f"the server ended with status {self._process.returncode}{self._tail()}")

    def _stop(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise DemoFailed(f"the server did not stop within {_STOP_S:.0f} s of SIGTERM{self._tail()}") from None
        if status not in (0, -signal.SIGTERM):
            raise DemoFailed(f"the server stopped with status {status}{self._tail()}")

    def _tail(self, lines: int = 30) -> str:
        """The end of the server's log, set off from the line before."""
        text = self.log.read_text("utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join(["", f"--- end of {self.log}", *text]) if text else ""


def _free_port() -> int:
    """`_PORT` when nobody listens there, else one that the system picks."""
    for port in (_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoFailed(f"no free port on {_HOST}")


if __name__ == "__main__":
    sys.exit(main())
