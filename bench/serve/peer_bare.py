"""Peer: uvicorn + onnxruntime with nothing between them: what Python costs before any pipeline is added.

A hand-written ASGI application, msgspec for JSON, one intra-op thread, the model run on the event loop. Settings: none.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import uvicorn


class Request(msgspec.Struct):
    x: list[float]


class Application:
    def __init__(self, model: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._decoder = msgspec.json.Decoder(Request)
        self._encoder = msgspec.json.Encoder()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("this application speaks HTTP only")
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        x = np.array([self._decoder.decode(body).x], np.float32)
        (y,) = self._session.run(None, {"x": x})
        answer = self._encoder.encode({"y": y[0].tolist()})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    uvicorn.run(
        Application(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
