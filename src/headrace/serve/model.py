"""A served model: a loaded backend, its batcher, its counters. Arrays in, arrays out, under a request's context.

Life: `await Model.load(...)` (load and warm on a thread; a failure half-way frees what was acquired), then `submit` or
`await infer`, then `await close()`: new work is refused, accepted work is finished, the backend is drained and freed
exactly once, by the thread that saw its last run end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from headrace.core.context import Context
from headrace.core.telemetry import Registry, Tracer
from headrace.errors import Cancelled, HeadraceError, InvalidInput
from headrace.serve.config import ModelConfig
from headrace.serve.loading import load_backend
from headrace.serve.metrics import ModelSeries, ServeMetrics
from headrace.serve.protocol import Backend, ConcurrentBackend, Tensors, TensorSpec
from headrace.serve.scheduler.batcher import Batcher
from headrace.serve.scheduler.direct import Direct
from headrace.serve.scheduler.work import Done, Work
from headrace.serve.tensors import check_tensors

__all__ = ["Model"]

_log = logging.getLogger(__name__)


class Model:
    """One version of one model, ready to infer. Belongs to the event loop that loaded it.

    Attributes:
        backend: What runs it; loaded until `close`.
        platform: How it runs ("onnx", "python", "llm").
        metadata: What the model's file says of itself.
        joinable: Whether requests can share a run: axis 0 of every input and output is dynamic.
        warm_s: CPU seconds of a warm-up run.
    """

    def __init__(
        self,
        name: str,
        version: str,
        backend: Backend,
        config: ModelConfig,
        metrics: ServeMetrics,
        warm_s: float,
        tracer: Tracer | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.platform = config.backend
        self.metadata: dict[str, str] = dict(getattr(backend, "metadata", {}))
        self.inputs: tuple[TensorSpec, ...] = backend.inputs
        self.outputs: tuple[TensorSpec, ...] = backend.outputs
        specs = (*self.inputs, *self.outputs)
        own = isinstance(backend, ConcurrentBackend)
        self.joinable = not own and bool(specs) and all(spec.shape[:1] == (-1,) for spec in specs)
        self.warm_s = warm_s
        self.series = ModelSeries(metrics, name, version)
        self.backend = backend
        self._tracer = tracer if tracer is not None and tracer.enabled else None
        self._closing: asyncio.Task[None] | None = None
        runtime = config.runtime
        self._instances = runtime.instances if backend.thread_safe else 1
        self._executor = ThreadPoolExecutor(self._instances, thread_name_prefix=f"model-{name}")
        fixed = all(-1 not in spec.shape[1:] for spec in self.inputs)
        steady = fixed and getattr(backend, "steady", False)
        self._batcher: Batcher | Direct
        if isinstance(backend, ConcurrentBackend):
            self._batcher = Direct(name, backend, self._observe)
        else:
            self._batcher = Batcher(
                name,
                backend.infer,
                self._executor,
                config.batching,
                "thread" if runtime.execution == "auto" and not steady else runtime.execution,
                self._instances,
                joinable=self.joinable,
                fixed=fixed,
                observe=self._observe,
                run_s=warm_s,
            )
        self.series.queued.set_function(lambda: float(self._batcher.queued))

    @classmethod
    async def load(
        cls,
        name: str,
        version: str,
        backend: Backend,
        config: ModelConfig,
        metrics: ServeMetrics | None = None,
        tracer: Tracer | None = None,
    ) -> Model:
        """Load and warm `backend` on a thread. Raises `LoadFailed`; nothing stays acquired then."""
        warm_s = await load_backend(name, backend, config.load_timeout_s)
        return cls(name, version, backend, config, metrics or ServeMetrics(Registry()), warm_s, tracer)

    def submit(self, tensors: Tensors, ctx: Context, done: Done, parameters: Mapping[str, Any] | None = None) -> Work:
        """Check the inputs and queue them; `done(outputs, error)` follows on the event loop, exactly once. `parameters`
        are for a backend that takes each request as it comes.

        Raises `InvalidInput` at once for wrong names, dtypes, shapes, row counts, or NaN where it is forbidden.
        """
        check_tensors(self.inputs, tensors)
        rows = self._rows(tensors)
        if not self.config.allow_nan:
            _check_finite(tensors)
        work = Work(tensors, rows, ctx, done, self.series.failed, parameters)
        self._batcher.submit(work)
        return work

    async def infer(self, tensors: Tensors, ctx: Context) -> Tensors:
        """The awaitable form of `submit`; raises what it would deliver. Cancelling it abandons the rows."""
        future: asyncio.Future[Tensors] = asyncio.get_running_loop().create_future()

        def done(result: Tensors | None, error: HeadraceError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                assert result is not None
                future.set_result(result)

        work = self.submit(tensors, ctx, done)
        try:
            return await future
        except asyncio.CancelledError:
            work.finish(None, Cancelled(f"request {ctx.request_id}: abandoned"))
            raise

    async def close(self, timeout_s: float = 30.0) -> None:
        """Refuse new work, finish what was accepted (at most `timeout_s`), free the backend. Idempotent.

        A run that outlasts the timeout keeps its backend until it returns; freeing it under a running call would crash.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(timeout_s))
        await asyncio.shield(self._closing)

    async def _close(self, timeout_s: float) -> None:
        await self._batcher.drain(timeout_s)
        release = asyncio.to_thread(self._release)
        if self._batcher.running:
            _log.warning(
                "model %r: a run outlasts the %g s of draining; it is freed when it ends", self.name, timeout_s
            )
            self._orphan = asyncio.create_task(release)
        else:
            await release
        self.series.forget()

    def _release(self) -> None:
        self._executor.shutdown(wait=True)
        for step in (self.backend.drain, self.backend.free):
            try:
                step()
            except BaseException:  # user code; even its sys.exit must neither end the server nor keep the rest unfreed
                _log.exception("model %r: %s failed", self.name, step.__name__)

    def _rows(self, tensors: Tensors) -> int:
        if not self.joinable:
            return 1
        rows = int(next(iter(tensors.values())).shape[0])
        if len(tensors) > 1:
            counts = {name: array.shape[0] for name, array in tensors.items()}
            if any(count != rows for count in counts.values()):
                raise InvalidInput(f"inputs need the same number of rows (axis 0), got {counts}")
        if not 1 <= rows <= self.config.max_rows:
            raise InvalidInput(f"expected 1..{self.config.max_rows} rows (axis 0), got {rows}")
        return rows

    def _observe(
        self, batch: Sequence[Work], outcomes: Sequence[Tensors | HeadraceError], start_s: float, took_s: float
    ) -> None:
        series, end_s = self.series, start_s + took_s
        rows = sum([work.rows for work in batch])
        series.last_run_s = time.time()
        series.run_s.observe(took_s)
        series.batch_rows.observe(rows)
        series.queue_s.observe_all([start_s - work.enqueued_s for work in batch])
        series.request_s.observe_all(
            [
                end_s - work.enqueued_s
                for work, outcome in zip(batch, outcomes, strict=True)
                if not work.finished and not isinstance(outcome, HeadraceError)
            ]
        )
        if self._tracer is None:
            return
        for work, outcome in zip(batch, outcomes, strict=True):
            if work.ctx.trace:
                facts: dict[str, str | int | float] = {
                    "model": self.name,
                    "version": self.version,
                    "batch_rows": rows,
                    "batch_requests": len(batch),
                    "queue_s": start_s - work.enqueued_s,
                }
                failure = outcome if isinstance(outcome, HeadraceError) else None
                self._tracer.record("run", work.ctx, took_s, facts, failure)


def _check_finite(tensors: Tensors) -> None:
    for name, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            index = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
            raise InvalidInput(f"tensor {name!r}: {array[index]} at {[int(i) for i in index]}; finite numbers expected")
