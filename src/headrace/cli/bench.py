"""`headrace bench …`: run the side-by-side programs of a source checkout; options in, their table and JSON line out.

The programs lie in `bench/` beside `src/`; they are no part of the installed package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import headrace
from headrace.cli._complete import references
from headrace.cli._model import MODEL_HELP
from headrace.errors import NotFound

__all__ = ["command"]


def _examples(*lines: str) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"headrace bench {line}" for line in lines)])


command = typer.Typer(
    name="bench",
    help="Measure Headrace beside its peers (from a source checkout).",
    no_args_is_help=True,
    epilog=_examples("serve", "soak --minutes 2"),
    rich_markup_mode="rich",
)

Json = Annotated[bool, typer.Option("--json", help="Print only one JSON line on stdout; progress goes to stderr.")]


def _program(name: str) -> Path:
    """Where program `name` of `bench/` lies. Raises `NotFound` outside a source checkout."""
    root = Path(headrace.__file__).resolve().parents[2]
    path = root / "bench" / name
    if not (root / "bench" / "_common.py").is_file():
        raise NotFound(
            "the benchmarks are not part of the installed package; run this from a source checkout "
            f"(pip install -e .), whose bench/ folder was looked for in {root}"
        )
    if not path.is_file():
        raise NotFound(f"this checkout has no bench/{name}")
    return path


def _run(name: str, *arguments: str) -> None:
    """Run the program to its end; its exit status becomes ours."""
    line = [sys.executable, str(_program(name)), *arguments]
    try:
        status = subprocess.run(line, check=False).returncode
    except KeyboardInterrupt:
        status = 130
    if status:
        raise typer.Exit(status if status > 0 else 128 - status)


def _flag(name: str, on: bool) -> list[str]:
    return [name] if on else []


@command.command(epilog=_examples("serve", "serve --peers mosec,bare --rounds 3 --json"))
def serve(
    seconds: Annotated[float, typer.Option(min=1, help="Length of one measurement.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all servers, alternating between them.")] = 5,
    tune_seconds: Annotated[float, typer.Option(min=1, help="Length of one run while a peer is tuned.")] = 2,
    connections: Annotated[str, typer.Option(help="Numbers of connections, comma-separated.")] = "1,16,64",
    peers: Annotated[
        str, typer.Option(help="Any of bare, mosec, litserve, mlserver, comma-separated; or none.")
    ] = "mosec,litserve,bare",
    only: Annotated[
        str, typer.Option(help="mlp: only the side-by-side run; binary: only binary tensors against JSON.")
    ] = "",
    json: Json = False,
) -> None:
    """Serve one tiny ONNX model by Headrace and its peers, drive each with wrk, and compare."""
    figures = ["--seconds", f"{seconds:g}", "--rounds", str(rounds), "--tune-seconds", f"{tune_seconds:g}"]
    choices = ["--connections", connections, "--peers", peers, *(["--only", only] if only else [])]
    _run("serve/run.py", *figures, *choices, *_flag("--json", json))


@command.command(epilog=_examples("soak", "soak --minutes 1 --connections 8 --json"))
def soak(
    minutes: Annotated[float, typer.Option(min=0.05, help="How long the load lasts.")] = 10,
    connections: Annotated[int, typer.Option(min=1, max=1024, help="Clients at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the mix of requests.")] = 1,
    json: Json = False,
) -> None:
    """Load a real server with good, broken, huge, slow and cancelled requests, and judge every answer."""
    _run("soak.py", "--minutes", f"{minutes:g}", "--connections", str(connections), "--seed", str(seed),
         *_flag("--json", json))  # fmt: skip


@command.command(epilog=_examples("core", "core --json"))
def core(json: Json = False) -> None:
    """Measure the rings between processes, beside what Python and pyzmq offer."""
    _run("core.py", *_flag("--json", json))


@command.command(epilog=_examples("ocr", "ocr --json"))
def ocr(json: Json = False) -> None:
    """Read text in images: the pipeline beside the reference implementation."""
    _run("ocr.py", *_flag("--json", json))


@command.command(epilog=_examples("vad", "vad --json"))
def vad(json: Json = False) -> None:
    """Find speech in audio: the pipeline beside the reference implementation."""
    _run("vad.py", *_flag("--json", json))


@command.command(epilog=_examples("rl", "rl --no-peers --json"))
def rl(
    peers: Annotated[bool, typer.Option(help="Measure EnvPool, Gymnasium, gymnax and SB3 beside.")] = True,
    peer_python: Annotated[str, typer.Option(help="A Python that has the peers, instead of making one.")] = "",
    json: Json = False,
) -> None:
    """Step environments, roll out policies and train with PPO: steps and episodes a second, seconds until solved."""
    options = [f"--peer-python={peer_python}"] if peer_python else []
    _run("rl/run.py", *_flag("--no-peers", not peers), *options, *_flag("--json", json))


@command.command(epilog=_examples("llm model.gguf", "llm model.gguf --peers llamacpp,openvino --json"))
def llm(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=references)],
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 2,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    gen: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 128,
    streams: Annotated[str, typer.Option(help="Answers at a time, comma-separated.")] = "1,4,8,16",
    stream_prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt with several streams.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all engines, alternating between them.")] = 3,
    kv_type: Annotated[str, typer.Option(help="How keys and values are kept: f16 or int8.")] = "f16",
    activations: Annotated[str, typer.Option(help="How activations are rounded: int8 or int12.")] = "int12",
    isa: Annotated[str, typer.Option(help="Instruction set of Headrace's kernels; default: the best.")] = "",
    peers: Annotated[str, typer.Option(help="Any of llamacpp, openvino, comma-separated.")] = "",
    peer_python: Annotated[str, typer.Option(help="A Python that has the peers, instead of making one.")] = "",
    json: Json = False,
) -> None:
    """Measure a language model: prefill, decoding one and many streams, latency, memory; alone or beside peers."""
    from headrace.cli._model import model_file

    numbers = {"threads": threads, "prompt": prompt, "gen": gen, "stream-prompt": stream_prompt, "rounds": rounds}
    texts = {
        "streams": streams,
        "kv-type": kv_type,
        "activations": activations,
        "isa": isa,
        "peers": peers,
        "peer-python": peer_python,
    }
    options = [f"--{name}={value}" for name, value in (numbers | texts).items()]
    _run("llm/run.py", str(model_file(model)), *options, *_flag("--json", json))
