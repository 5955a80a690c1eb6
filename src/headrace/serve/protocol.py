"""The few types every part of the inference plane speaks: `Payload`, `Stage`, `Backend`, `TensorSpec`.

A request becomes a `Payload`; stages turn payloads into payloads; a backend turns named arrays into named arrays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context

__all__ = ["Array", "Backend", "ConcurrentBackend", "Payload", "Ragged", "Stage", "TensorSpec", "Tensors"]

Array: TypeAlias = npt.NDArray[Any]
Tensors: TypeAlias = dict[str, Array]
Ragged: TypeAlias = list[Array]
"""Rows whose shapes differ: one array a row, without a batch axis."""


@dataclass(slots=True)
class Payload:
    """What flows between stages. A stage may fill, replace or drop any field; unused fields stay empty.

    Attributes:
        data: Raw bytes as they came in (an image, a WAV).
        media_type: IANA media type of `data`, or "" when unknown.
        text: Text, already decoded.
        tensors: Named arrays (axis 0 is the batch), or a `Ragged` list with one array a row.
        metadata: Facts that later stages need (sizes, boxes); never shown to the client.
        result: The JSON-able answer being built; what a pipeline's caller receives.
    """

    data: bytes | memoryview = b""
    media_type: str = ""
    text: str = ""
    tensors: dict[str, Array | Ragged] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    result: Any = None


class Stage(Protocol):
    """One step of a pipeline.

    `process` may be a plain function (it runs on a worker thread, so it may block) or a coroutine (it runs on the
    event loop and must not block). Four optional members are looked up by the pipeline:

    - `inline: bool = True` — a plain `process` so short (< 50 us) that it runs on the event loop itself;
    - `bind(models: ModelResolver) -> None` — called once before the first request with `models(name) -> Model`;
    - `needs: tuple[str, ...]` — names of the models it will ask for, which are loaded first;
    - `close() -> None` — called once after the last request.

    Errors from the `headrace.errors` tree reach the client as they are; any other exception becomes `StageFailed`.
    """

    def process(self, payload: Payload, ctx: Context, /) -> Payload | Awaitable[Payload]: ...


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of one model input or output; -1 marks a dynamic axis, axis 0 is the batch.

    Shape () is a scalar, or a tensor whose rank the model does not state.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@runtime_checkable
class Backend(Protocol):
    """A loaded model: load -> warm -> infer -> drain -> free, each of the outer four exactly once and in this order.

    Attributes:
        inputs, outputs: Known after `load`.
        thread_safe: Whether `infer` may run in several threads at once; the scheduler enforces it.

    An optional `steady: bool = True` says that the time of `infer` depends on the input's shapes alone; only then may
    the scheduler run it on the event loop, and only while it measures short. User code is never assumed to be steady.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    thread_safe: bool

    def load(self) -> None:
        """Acquire everything. Raises `LoadFailed`; whatever was acquired before the failure is released first."""

    def warm(self) -> None:
        """Run once on representative input so that the first request pays no start-up cost."""

    def infer(self, tensors: Tensors, /) -> Tensors:
        """Map inputs of n rows (axis 0) to outputs of n rows. Blocking; called off the event loop unless very short."""

    def drain(self) -> None:
        """No further `infer` will come; finish what runs."""

    def free(self) -> None:
        """Release everything; safe to call after a failed `load`, and more than once."""


@runtime_checkable
class ConcurrentBackend(Backend, Protocol):
    """A backend that takes each request as it comes and joins them itself, such as a language model.

    `answer` stands for `infer` then; everything else of its life is the same.
    """

    async def answer(self, tensors: Tensors, ctx: Context, parameters: Mapping[str, Any], /) -> Tensors:
        """Map inputs to outputs without blocking the event loop; cancelling it stops the work. `parameters` are the
        request's, but for those that the protocol defines; one that means nothing here must be refused."""
        ...

    async def settle(self) -> None:
        """Return when nothing that was accepted, by whatever way, runs any more; nothing new comes meanwhile."""
