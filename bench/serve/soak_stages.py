"""Stages of the soak test's pipelines: a number as text in, the model's tensor; the model's answer in, JSON out."""

from __future__ import annotations

import time

import numpy as np

from headrace.core.context import Context
from headrace.errors import InvalidInput
from headrace.serve.protocol import Payload


class Parse:
    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s

    def process(self, payload: Payload, ctx: Context) -> Payload:
        time.sleep(self._delay_s)
        text = payload.text or bytes(payload.data).decode("ascii", "replace")
        if not text.isdigit():
            raise InvalidInput(f"expected a number in digits, got {text[:40]!r}")
        payload.metadata["sent"] = int(text)
        payload.tensors["x"] = np.full((1, 16), int(text), np.float32)
        return payload


class Answer:
    inline = True

    def process(self, payload: Payload, ctx: Context) -> Payload:
        y = payload.tensors["y"]
        payload.result = {"sent": payload.metadata["sent"], "value": int(y[0][0])}
        return payload
