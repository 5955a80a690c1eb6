"""Peer: LitServe, one worker, batching as asked for.

Arguments: MODEL PORT MAX_BATCH BATCH_TIMEOUT_S FAST_QUEUE(0|1).
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime as ort


class Single(litserve.LitAPI):
    def __init__(self, model: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._model = model

    def setup(self, device: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(self._model, options, providers=["CPUExecutionProvider"])

    def decode_request(self, request):  # no annotation: LitServe would take it for a schema to validate with
        return np.array(request["x"], np.float32)

    def predict(self, x: Any) -> Any:
        (y,) = self._session.run(None, {"x": x[None]})
        return y[0]

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"y": output.tolist()}


class Batched(Single):
    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def predict(self, x: Any) -> Any:
        (y,) = self._session.run(None, {"x": x})
        return y


if __name__ == "__main__":
    model, port, max_batch, timeout_s, fast_queue = sys.argv[1:6]
    kind = Single if max_batch == "1" else Batched
    api = kind(model, max_batch_size=int(max_batch), batch_timeout=float(timeout_s))
    server = litserve.LitServer(
        api, accelerator="cpu", devices=1, workers_per_device=1, fast_queue=fast_queue == "1", timeout=30
    )
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False, num_api_servers=1)
