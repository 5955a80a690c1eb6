"""A 16 MB FP32 tensor sent to our server as a binary tensor and as JSON: requests a second, and their ratio.

Two models: `sum` answers with one number, so that the request's cost stands alone (`binary_ratio_json`); `echo` answers
with the tensor itself, in the form it was asked in (`binary_ratio_json_echo`). Bodies are prepared once, and neither
encoding nor decoding in the client is timed. JSON numbers are the shortest text that gives the same float32.
"""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mlp import write_binary_models
from repository import add_model

from _common import BenchError, Process, free_port, headrace_command, median, progress

__all__ = ["measure_binary"]

COLUMNS = 4 * 1024 * 1024
REPEATS = {"binary": 11, "json": 5}

Body = tuple[bytes, dict[str, str]]


def _bodies(x: npt.NDArray[np.float32]) -> dict[str, Body]:
    """The same request in both forms, with its headers. `x` repeats a block, so its text is made once."""
    tensor: dict[str, Any] = {"name": "x", "shape": list(x.shape), "datatype": "FP32"}
    block = x[0, :4096]
    data = ",".join(str(value) for value in block)
    text = json.dumps({"inputs": [tensor | {"data": []}]}).replace("[]", f"[{','.join([data] * (COLUMNS // 4096))}]")
    head = {
        "inputs": [tensor | {"parameters": {"binary_data_size": x.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(head).encode()
    binary = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    return {"binary": (header + x.tobytes(), binary), "json": (text.encode(), {"Content-Type": "application/json"})}


def _answer(form: str, headers: dict[str, str], body: bytes) -> npt.NDArray[np.float32]:
    if form == "json":
        return np.array(json.loads(body)["outputs"][0]["data"], np.float32)
    return np.frombuffer(body, np.float32, offset=int(headers["inference-header-content-length"]))


def _time(connection: http.client.HTTPConnection, path: str, body: Body) -> tuple[float, dict[str, str], bytes]:
    started = time.perf_counter()
    connection.request("POST", path, *body)
    response = connection.getresponse()
    answer = response.read()
    taken = time.perf_counter() - started
    if response.status != 200:
        raise BenchError(f"{path} answered {response.status}: {answer[:500]!r}")
    return taken, {name.lower(): value for name, value in response.getheaders()}, answer


def _check(case: str, got: npt.NDArray[np.float32], x: npt.NDArray[np.float32]) -> None:
    right = np.array_equal(got, x[0]) if case == "echo" else np.allclose(got, x.sum(dtype=np.float64), rtol=1e-3)
    if not right or got.size != (COLUMNS if case == "echo" else 1):
        raise BenchError(f"{case}: the answer is not numerically right: {got[:4]}…")


def measure_binary(folder: Path) -> dict[str, Any]:
    """Start our server on the two models, time both forms on each, check every first answer."""
    files = write_binary_models(folder, COLUMNS)
    repository = folder / "repository"
    for file in files:
        add_model(repository, file.stem, file)
    x = np.tile(np.random.default_rng(3).uniform(0, 1, 4096).astype(np.float32), COLUMNS // 4096)[None]
    bodies = _bodies(x)
    runs, rates = [], {}
    port = free_port()
    with Process(headrace_command("serve", str(repository), "--host", "127.0.0.1", "--port", str(port))) as server:
        server.wait_ready(port, "/v2/health/ready")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for case in ("sum", "echo"):
            path = f"/v2/models/{case}/infer"
            for form, body in bodies.items():
                _, headers, answer = _time(connection, path, body)
                _check(case, _answer(form, headers, answer), x)
                taken = median(_time(connection, path, body)[0] for _ in range(REPEATS[form]))
                rates[case, form] = 1 / taken
                progress(f"16 MB tensor, {case}, {form}: {taken * 1e3:,.1f} ms")
                runs.append({"case": f"{case}, {form}", "p50_ms": round(taken * 1e3, 3), "rps": round(1 / taken, 3),
                             "request_mb": len(body[0]) / 1e6, "response_mb": len(answer) / 1e6})  # fmt: skip
        connection.close()
    return {
        "binary_ratio_json": round(rates["sum", "binary"] / rates["sum", "json"], 3),
        "binary_ratio_json_echo": round(rates["echo", "binary"] / rates["echo", "json"], 3),
        "binary_runs": runs,
    }
