"""The stage that runs a model: named payload tensors in, the model's outputs back into the payload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, Unavailable
from headrace.serve.protocol import Array, Payload, Ragged, Tensors, TensorSpec

__all__ = ["Infer", "Inferrer", "ModelResolver", "best_pairs"]


class Inferrer(Protocol):
    """What a stage needs of a served model: its specs and a batched, scheduled `infer`."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    async def infer(self, tensors: Tensors, ctx: Context, /) -> Tensors: ...


ModelResolver = Callable[[str], Inferrer]


class Infer:
    """Run model `model` on payload tensors.

    Args:
        model: Name in the repository; resolved at each call, so that a reloaded model is picked up.
        inputs: model input -> payload tensor; default: the same name.
        outputs: model output -> payload tensor; default: the same name.
        best: Model outputs of which only the best class of the last axis is kept, as pairs (class, value): shape
            (..., C) becomes (..., 2) float32. Thousands of class probabilities a step add up to gigabytes while the
            other rows of a request are still being run.

    A plain array is sent as it is (axis 0 is the batch). A `Ragged` list is sent row by row (all rows at once; the
    scheduler joins rows of one shape, also across requests), and each output comes back as a list in the same order.
    """

    def __init__(
        self,
        model: str,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        best: list[str] | None = None,
    ) -> None:
        if not model:
            raise ConfigError("infer: `model` must name a model of the repository")
        self.model = model
        self._inputs = dict(inputs or {})
        self._outputs = dict(outputs or {})
        self._best = tuple(best or ())
        self._models: ModelResolver | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The models this stage uses, so that the repository loads them first and keeps them while it is there."""
        return (self.model,)

    def bind(self, models: ModelResolver) -> None:
        self._models = models

    async def process(self, payload: Payload, ctx: Context, /) -> Payload:
        if self._models is None:
            raise Unavailable(f"infer: model {self.model!r} is not bound to a repository")
        model = self._models(self.model)
        taken: dict[str, Array | Ragged] = {}
        for spec in model.inputs:
            name = self._inputs.get(spec.name, spec.name)
            if name not in payload.tensors:
                have = ", ".join(sorted(payload.tensors)) or "none"
                raise InvalidInput(f"model {self.model!r} needs tensor {name!r}; the payload has: {have}")
            taken[spec.name] = payload.tensors[name]
        rows = {name: value for name, value in taken.items() if isinstance(value, list)}
        answer: Mapping[str, Array | Ragged]
        if rows:
            answer = await self._ragged(model, taken, rows, ctx)
        else:
            answer = await self._infer(
                model, {name: value for name, value in taken.items() if not isinstance(value, list)}, ctx
            )
        for name, value in answer.items():
            payload.tensors[self._outputs.get(name, name)] = value
        return payload

    async def _infer(self, model: Inferrer, tensors: Tensors, ctx: Context) -> Tensors:
        """Infer; a model closed by a reload after it was resolved hands the request to its successor."""
        assert self._models is not None
        try:
            answer = await model.infer(tensors, ctx)
        except Unavailable:
            successor = self._models(self.model)
            if successor is model:
                raise
            answer = await successor.infer(tensors, ctx)
        if self._best:
            await asyncio.to_thread(self._reduce, answer)
        return answer

    def _reduce(self, answer: Tensors) -> None:
        for name in self._best:
            if name not in answer:
                raise ConfigError(f"infer: `best` names {name!r}; model {self.model!r} gives {', '.join(answer)}")
            answer[name] = best_pairs(answer[name])

    async def _ragged(
        self, model: Inferrer, taken: dict[str, Array | Ragged], rows: dict[str, Ragged], ctx: Context
    ) -> dict[str, Array | Ragged]:
        counts = {name: len(value) for name, value in rows.items()}
        if len(set(counts.values())) > 1 or len(rows) != len(taken):
            raise InvalidInput(f"model {self.model!r}: ragged inputs need the same number of rows each, got {counts}")
        count = next(iter(counts.values()))
        answers = await asyncio.gather(
            *(self._infer(model, {name: value[i][None] for name, value in rows.items()}, ctx) for i in range(count))
        )
        return {spec.name: [answer[spec.name][0] for answer in answers] for spec in model.outputs}


def best_pairs(scores: Array) -> Array:
    """(..., C) scores -> (..., 2) float32: the index of the best class, exact up to 2**24 classes, and its score."""
    index = scores.argmax(axis=-1)
    value = np.take_along_axis(scores, index[..., None], axis=-1)[..., 0]
    return np.stack([index.astype(np.float32), value.astype(np.float32)], axis=-1)
