"""A served model on a real backend: load, refuse, infer, and free exactly once whatever happens."""

import asyncio
import threading

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.core.telemetry import Registry, render
from headrace.errors import Cancelled, DeadlineExceeded, InvalidInput, LoadFailed, Unavailable
from headrace.serve.config import BatchingConfig, ModelConfig, RuntimeConfig
from headrace.serve.metrics import ServeMetrics
from headrace.serve.model import Model
from headrace.serve.protocol import TensorSpec

FLOAT = np.dtype(np.float32)


class Doubler:
    """A backend that doubles and keeps a diary of its life."""

    thread_safe = True

    def __init__(self, fail_in="", gate=None, shape=(-1, 2)):
        self.inputs = (TensorSpec("x", FLOAT, shape),)
        self.outputs = (TensorSpec("y", FLOAT, shape),)
        self.diary = []
        self.fail_in = fail_in
        self.gate = gate

    def _note(self, step):
        self.diary.append(step)
        if step == self.fail_in:
            raise RuntimeError(f"no {step} today")

    def load(self):
        self._note("load")

    def warm(self):
        self._note("warm")

    def infer(self, tensors):
        if self.gate is not None:
            assert self.gate.wait(10)
        return {"y": tensors["x"] * 2}

    def drain(self):
        self._note("drain")

    def free(self):
        self._note("free")


async def load(backend, **config):
    return await Model.load("m", "1", backend, ModelConfig(backend="python", **config))


def rows(n=1):
    return {"x": np.ones((n, 2), np.float32)}


async def test_lives_load_warm_infer_drain_free_each_once():
    backend = Doubler()
    model = await load(backend)
    answer = await model.infer(rows(3), Context())
    np.testing.assert_array_equal(answer["y"], np.full((3, 2), 2.0))
    await asyncio.gather(model.close(), model.close())
    assert backend.diary == ["load", "warm", "drain", "free"]
    with pytest.raises(Unavailable):
        await model.infer(rows(), Context())


@pytest.mark.parametrize("step", ["load", "warm"])
async def test_a_load_that_fails_half_way_frees_what_it_took(step):
    backend = Doubler(fail_in=step)
    with pytest.raises(LoadFailed, match=f"model 'm': RuntimeError: no {step} today"):
        await load(backend)
    assert backend.diary[-1] == "free"
    assert backend.diary.count("free") == 1


async def test_closing_waits_for_what_runs_and_frees_after_it():
    gate = threading.Event()
    backend = Doubler(gate=gate)
    model = await load(backend, runtime=RuntimeConfig(execution="thread"))
    answer = asyncio.ensure_future(model.infer(rows(), Context()))
    await asyncio.sleep(0.02)
    closing = asyncio.ensure_future(model.close())
    await asyncio.sleep(0.02)
    assert "free" not in backend.diary
    gate.set()
    assert (await answer)["y"].sum() == 4
    await closing
    assert backend.diary[-2:] == ["drain", "free"]


async def test_a_run_that_outlasts_the_drain_keeps_its_backend_until_it_ends():
    gate = threading.Event()
    backend = Doubler(gate=gate)
    model = await load(backend, runtime=RuntimeConfig(execution="thread"))
    answer = asyncio.ensure_future(model.infer(rows(), Context()))
    await asyncio.sleep(0.02)
    await model.close(timeout_s=0.01)
    assert "free" not in backend.diary
    gate.set()
    assert (await answer)["y"].sum() == 4
    for _ in range(500):
        if "free" in backend.diary:
            break
        await asyncio.sleep(0.01)
    assert backend.diary[-2:] == ["drain", "free"]


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "'x' is missing"),
        ({"x": np.ones((1, 2), np.float64)}, "expected FP32, got FP64"),
        ({"x": np.ones((1, 3), np.float32)}, "axis 1 must be 2, is 3"),
        ({"x": np.ones(2, np.float32)}, "expected 2 axes"),
        ({"x": np.ones((0, 2), np.float32)}, r"1\.\.8 rows .* got 0"),
        ({"x": np.ones((9, 2), np.float32)}, r"1\.\.8 rows .* got 9"),
        ({**rows(), "z": np.ones(1)}, "unknown tensor 'z'"),
        ({"x": np.array([[1, np.nan]], np.float32)}, r"nan at \[0, 1\]"),
        ({"x": np.array([[np.inf, 0]], np.float32)}, r"inf at \[0, 0\]"),
    ],
)
async def test_wrong_inputs_are_refused_by_name(tensors, said):
    model = await load(Doubler(), max_rows=8, allow_nan=False)
    with pytest.raises(InvalidInput, match=said):
        await model.infer(tensors, Context())
    await model.close()


async def test_a_backend_that_is_not_thread_safe_never_runs_twice_at_once():
    running, most = 0, 0

    class Fragile(Doubler):
        thread_safe = False

        def infer(self, tensors):
            nonlocal running, most
            running += 1
            most = max(most, running)
            threading.Event().wait(0.005)
            running -= 1
            return super().infer(tensors)

    runtime = RuntimeConfig(execution="thread", instances=4)
    model = await load(Fragile(), runtime=runtime, batching=BatchingConfig(max_batch=1))
    await asyncio.gather(*(model.infer(rows(), Context()) for _ in range(8)))
    await model.close()
    assert most == 1


async def test_models_without_a_batch_axis_run_one_request_at_a_time():
    shapes = []

    class Fixed(Doubler):
        def infer(self, tensors):
            shapes.append(tensors["x"].shape)
            return super().infer(tensors)

    model = await load(Fixed(shape=(1, 2)))
    assert not model.joinable
    await asyncio.gather(*(model.infer(rows(), Context()) for _ in range(4)))
    await model.close()
    assert shapes == [(1, 2)] * 4


async def test_deadline_and_cancellation_reach_the_caller():
    gate = threading.Event()
    model = await load(Doubler(gate=gate), runtime=RuntimeConfig(execution="thread"))
    first = asyncio.ensure_future(model.infer(rows(), Context()))
    await asyncio.sleep(0.02)
    with pytest.raises(DeadlineExceeded):
        await model.infer(rows(), Context(timeout_s=0.02))
    ctx = Context()
    second = asyncio.ensure_future(model.infer(rows(), ctx))
    await asyncio.sleep(0.01)
    ctx.cancel()
    gate.set()
    await first
    with pytest.raises(Cancelled):
        await second
    await model.close()


async def test_counts_what_happened():
    model = await load(Doubler())
    await model.infer(rows(3), Context())
    with pytest.raises(DeadlineExceeded):
        await model.infer(rows(), Context(timeout_s=0.0))
    counts, total = model.series.batch_rows.snapshot()
    assert (sum(counts), total) == (1, 3)
    assert model.series.failed_count == 1
    await model.close()


async def test_a_reload_of_the_same_version_keeps_its_metrics():
    metrics = ServeMetrics(Registry())
    config = ModelConfig(backend="python")
    old = await Model.load("m", "1", Doubler(), config, metrics)
    await old.infer(rows(), Context())
    new = await Model.load("m", "1", Doubler(), config, metrics)
    await old.close()
    await new.infer(rows(), Context())
    assert b'headrace_model_request_seconds_count{model="m",version="1"} 2.0' in render(metrics.registry)[0]
    await new.close()
    assert b'model="m"' not in render(metrics.registry)[0]
