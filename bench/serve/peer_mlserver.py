"""Peer: MLServer, a custom runtime over onnxruntime in the server's own process, speaking the Open Inference Protocol.

Arguments: MODEL PORT MAX_BATCH (0: no batching) MAX_WAIT_S.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import numpy as np
import onnxruntime as ort
from mlserver import MLModel, MLServer
from mlserver.settings import ModelParameters, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Mlp(MLModel):
    async def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        model = self.settings.parameters.uri
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = payload.inputs[0]
        x = np.array(tensor.data.root, np.float32).reshape(tensor.shape)
        (y,) = self._session.run(None, {"x": x})
        output = ResponseOutput(name="y", shape=list(y.shape), datatype="FP32", data=y.ravel().tolist())
        return InferenceResponse(model_name=self.name, outputs=[output])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def main(model: str, port: int, max_batch: int, wait_s: float) -> None:
    settings = Settings(
        host="127.0.0.1",
        http_port=port,
        grpc_port=free_port(),
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
        use_structured_logging=False,
    )
    served = ModelSettings(
        name="mlp",
        implementation=Mlp,
        max_batch_size=max_batch,
        max_batch_time=wait_s,
        parameters=ModelParameters(uri=model),
    )
    await MLServer(settings).start([served])


if __name__ == "__main__":
    path, number, batch, wait = sys.argv[1:5]
    asyncio.run(main(path, int(number), int(batch), float(wait)))
