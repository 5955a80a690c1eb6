"""The servers of the comparison: how each is started, what it is asked, and the settings it may be tuned with.

A peer is tried with every setting below and measured with the best one for each connection count, so that none is
handicapped by our choice; Headrace runs with its defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _common import headrace_command

__all__ = ["ALL", "DEFAULT_PEERS", "REQUIREMENTS", "Server", "requirements"]

HERE = Path(__file__).resolve().parent

Command = Callable[[str, Path, int], list[str]]
"""(python of the peers' environment, folder with the model files, port) -> command line."""


def _plain_body(x: Sequence[float]) -> bytes:
    return json.dumps({"x": list(x)}, separators=(",", ":")).encode()


def _plain_answer(body: bytes) -> list[float]:
    return list(json.loads(body)["y"])


def _oip_body(x: Sequence[float]) -> bytes:
    tensor = {"name": "x", "shape": [1, len(x)], "datatype": "FP32", "data": list(x)}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def _oip_answer(body: bytes) -> list[float]:
    return list(json.loads(body)["outputs"][0]["data"])


@dataclass(frozen=True, slots=True)
class Server:
    """One server: `settings` maps a label to a command line; `body` and `answer` are its wire format."""

    name: str
    path: str
    settings: dict[str, Command]
    packages: tuple[str, ...]
    body: Callable[[Sequence[float]], bytes] = _plain_body
    answer: Callable[[bytes], list[float]] = _plain_answer


def _program(name: str, *arguments: Any) -> Command:
    def command(python: str, models: Path, port: int) -> list[str]:
        return [python, str(HERE / name), str(models / "mlp.onnx"), str(port), *map(str, arguments)]

    return command


def _headrace(_: str, models: Path, port: int) -> list[str]:
    return headrace_command("serve", str(models / "repository"), "--host", "127.0.0.1", "--port", str(port))


def _mosec(batch: int, wait_ms: int, workers: int) -> Command:
    return _program("peer_mosec.py", batch, wait_ms, workers)


def _litserve(batch: int, timeout_s: float, fast_queue: bool) -> Command:
    return _program("peer_litserve.py", batch, timeout_s, int(fast_queue))


ALL = {
    server.name: server
    for server in (
        Server("headrace", "/v2/models/mlp/infer", {"defaults": _headrace}, (), _oip_body, _oip_answer),
        Server("bare", "/", {"msgspec, intra_op=1": _program("peer_bare.py")}, ("uvicorn[standard]",)),
        Server(
            "mosec",
            "/inference",
            {
                "no batching": _mosec(1, 0, 1),
                "no batching, 2 workers": _mosec(1, 0, 2),
                "batch 16, wait 1 ms": _mosec(16, 1, 1),
                "batch 64, wait 1 ms": _mosec(64, 1, 1),
                "batch 16, wait 1 ms, 2 workers": _mosec(16, 1, 2),
                "batch 32, wait 1 ms, 2 workers": _mosec(32, 1, 2),
                "batch 64, wait 1 ms, 2 workers": _mosec(64, 1, 2),
            },
            ("mosec",),
        ),
        Server(
            "litserve",
            "/predict",
            {
                "no batching": _litserve(1, 0.0, False),
                "no batching, fast queue": _litserve(1, 0.0, True),
                "batch 16, timeout 1 ms": _litserve(16, 0.001, False),
                "batch 16, timeout 1 ms, fast queue": _litserve(16, 0.001, True),
                "batch 64, timeout 1 ms": _litserve(64, 0.001, False),
            },
            ("litserve",),
        ),
        Server(
            "mlserver",
            "/v2/models/mlp/infer",
            {
                "no batching": _program("peer_mlserver.py", 0, 0),
                "batch 64, wait 1 ms": _program("peer_mlserver.py", 64, 0.001),
            },
            ("mlserver",),
            _oip_body,
            _oip_answer,
        ),
    )
}

DEFAULT_PEERS = ("mosec", "litserve", "bare")

REQUIREMENTS = {
    "mosec": "mosec==0.9.8",
    "litserve": "litserve==0.2.19",
    "uvicorn[standard]": "uvicorn[standard]==0.54.0",
    "mlserver": "mlserver==1.7.1",
}


def requirements(names: Sequence[str]) -> list[str]:
    """Pinned requirements of the peers `names`; NumPy, msgspec and onnxruntime are the versions Headrace runs with."""
    own = [f"{package}=={version(package)}" for package in ("onnxruntime", "msgspec", "numpy")]
    return [*(REQUIREMENTS[package] for name in names for package in ALL[name].packages), *own]
