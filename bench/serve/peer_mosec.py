"""Peer: mosec, with msgspec for JSON and dynamic batching; the Rust front forms the batches.

Arguments: MODEL PORT MAX_BATCH MAX_WAIT_MS WORKERS. mosec reads its own options from the environment.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
from mosec import Server, Worker


class Request(msgspec.Struct):
    x: list[float]


class Plain(Worker):
    """One request at a time, for `max_batch_size = 1`."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"])
        self._decoder = msgspec.json.Decoder(Request)
        self._encoder = msgspec.json.Encoder()

    def deserialize(self, data: bytes) -> Request:
        return self._decoder.decode(data)

    def serialize(self, data: Any) -> bytes:
        return self._encoder.encode(data)

    def forward(self, data: Any) -> Any:
        (y,) = self._session.run(None, {"x": np.array([data.x], np.float32)})
        return {"y": y[0].tolist()}


class Batched(Plain):
    def forward(self, data: Any) -> Any:
        (y,) = self._session.run(None, {"x": np.array([request.x for request in data], np.float32)})
        return [{"y": row} for row in y.tolist()]


if __name__ == "__main__":
    model, port, max_batch, wait_ms, workers = sys.argv[1:6]
    os.environ.update(BENCH_MODEL=model, MOSEC_ADDRESS="127.0.0.1", MOSEC_PORT=port, MOSEC_LOG_LEVEL="warning")
    sys.argv = sys.argv[:1]
    server = Server()
    env = [{"BENCH_MODEL": model}] * int(workers)
    if int(max_batch) == 1:
        server.append_worker(Plain, num=int(workers), env=env)
    else:
        server.append_worker(
            Batched, num=int(workers), max_batch_size=int(max_batch), max_wait_time=int(wait_ms), env=env
        )
    server.run()
